"""Tables that add up, and figures derived from them."""

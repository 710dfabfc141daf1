"""Studies: mechanisms beside each other on synthetic microdata, and beside other practices. Nothing is released."""

"""Beside other practices: what the study of mechanisms compares with. Nothing here is released or promised."""

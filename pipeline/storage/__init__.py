"""Locations, whole and durable files, sealed files and private staging."""

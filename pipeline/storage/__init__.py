"""Locations, durable files, objects of stores, sealed files and private staging."""

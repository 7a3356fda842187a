"""GSPMD: a program for one device, a few annotations, and the rest follows."""

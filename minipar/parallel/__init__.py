"""Ways to spread a model over ranks.  Each is a place to insert a conjugate collective."""

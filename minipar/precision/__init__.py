"""Mixed precision: narrow formats for arithmetic, float32 master weights, loss scaling."""

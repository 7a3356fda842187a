"""What the configuration of a run means: the objects that it is made of."""

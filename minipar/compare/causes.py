"""What kind of difference it is."""


def explain(found, left, right) -> str:
    return ""

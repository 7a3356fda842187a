"""Numbers against numbers.

    curves          losses, costs, loads, limits
    points          quality against cost
    distributions   numbers, and what formats keep of them
    traffic         who sends how much, to whom

Each takes plain data: numbers and names.
"""

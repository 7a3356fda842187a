"""Numbers against numbers.

    curves          losses, costs, loads, limits
    points          quality against cost
    distributions   numbers, and what formats keep of them
    traffic         bytes between ranks, and other numbers of each rank

Each takes plain data: numbers and names.
"""

"""Files for browsers.

    page                        the skeleton of pages
    rounds_page, schedule_page  a collective's rounds, a pipeline's schedule, to play with
    perfetto                    a trace for ui.perfetto.dev

Each is one file that needs no network.
"""

"""Plan a training run: seconds and memory of every layout on a cluster, judged on published runs.

    model + cluster + layout ─▶ step_time: seconds of a step, by part
                             ─▶ memory: bytes of the fullest rank, by kind
    model + cluster ─▶ search: all layouts that fit, the fastest first

    models, cluster, layout     the input: data files and names
    time/                       a layout's seconds: kernels, messages, stages, stalls
    memory                      its bytes
    minipar_formulas/           both for the software `minipar`, which is minipar itself
    search, reasons             the best layouts, and what binds them
    table                       CSV files of layouts and measured runs
    calculator, export          a page for a browser, and the functions that it evaluates

A file in `clusters/` describes a GPU and its software generations.  It has numbers of data sheets,
and a few that were fitted to published runs, each with a physical meaning.
"""

"""Parts that tests share: models, training runs, definitions to compare with, and programs.

Training runs, each with one process to compare with:

    cases.py               one run for every strategy;  case_models.py has its models
    expert_runs.py         GPTs with experts
    low_precision_runs.py  few bits;  quantized_runs.py: quantized messages
    tensor_models.py       tensor parallelism
    scripted_model.py      a GPT that says what a test wants
    given_gradients.py     a model whose gradients a test gives
    picky.py               a model whose parameters are not all used
    planned.py             models and chains to plan rematerialization for
    measured_step.py       a step under a trace and a ledger;  step_peaks.py: its peak in two ways
    moe_layer.py           a layer with experts, and its inputs
    traced.py              a run whose trace has all there is

Definitions, written down a second time:

    by_definition.py       number formats;  block_numbers.py: codecs, and their largest error
    context_cases.py       attention
    moe_by_definition.py   mixtures of experts
    rows_on_paper.py       what a rank of a pipeline sends and keeps
    wires_by_definition.py few numbers, few bits: sums over ranks in one process
    slot_contents.py       the slots of a paged cache, without arrays
    schedule_cases.py      stages of each rank, by schedule
    agreement.py           the first number that is not as defined, in one line for a learner

Arrays and worlds of their own:

    strict_array.py        an array that refuses to become NumPy's, as CuPy's does
    counting.py            arrays that count FLOPs
    sandbox.py             small test files, run by a pytest of their own
    mistakes.py            a program in which one rank makes a mistake
    thread_stacks.py       stacks for docs/browser/greenlet.py outside a browser

Tables, some of which become pages of docs/:

    cells.py               the cells of the composition matrix
    sweeps.py              every k-th case of a sweep in `make test`, all in `make test-all`
    matrix.py              the matrix;  its parts: matrix_context.py, matrix_experts.py,
                           matrix_memory.py, matrix_offload.py, matrix_precision.py and
                           matrix_quantized.py
    late_weights_page.py   the picture of docs/pages/late_weights.md;  late_quadratic.py: its runs
    memory_page.py         the tables of docs/pages/memory.md
    plan_rows.py           published runs, and how well `minipar plan` predicts them;  plan_fit.py
                           fits its numbers;  plan_page.py: the pages on it
    plan_and_simulation.py the plan of /minipar beside simulated steps, and its table
    slow_network_page.py   the table and pictures of docs/pages/slow_networks.md
    operations.py          every operation of autograd, found by looking
    operation_table.py     every collective operation and algorithm;  print_table.py prints it
    rooms.py               the packages of minipar and their imports
    spine_programs.py      the programs of the spine's five parts
    oldest_versions.py     the oldest versions that setup.cfg allows
"""

"""Ways to break planning."""

from tests.mutations.mutation import Mutation

FLOPS, MEMORY = "tests/plan/test_flops.py", "tests/plan/test_memory.py"
LAYOUT, SCALING = "tests/plan/test_layout.py", "tests/plan/test_scaling.py"

PLANS = (
    Mutation(
        "plan: the backward pass is as long as the forward pass",
        "saccade/plan/costs.py",
        "return Cost(once, once if first else 2 * once)",
        "return Cost(once, once)",
        (f"{FLOPS}::test_a_step_of_a_language_model_has_the_flops_of_torch",),
    ),
    Mutation(
        "plan: the keys and values of a memory are forgotten",
        "saccade/plan/transformers.py",
        "linear(one.query, n) + linear(one.kv, m) + linear(one.out, n)",
        "linear(one.query, n) + linear(one.out, n)",
        (f"{FLOPS}::test_a_step_of_an_encoder_and_a_decoder_has_the_flops_of_torch",),
    ),
    Mutation(
        "plan: a norm keeps nothing",
        "saccade/plan/costs.py",
        "return Cost(single=rows * (width + 2))",
        "return Cost()",
        (f"{MEMORY}::test_a_language_model_keeps_what_torch_keeps",),
    ),
    Mutation(
        "plan: gradients and activations are whole at the same moment",
        "saccade/plan/memory.py",
        "kept -= _kept(layer, width, checkpointing)",
        "kept -= 0.0",
        (f"{MEMORY}::test_the_peak_of_a_step_is_that_of_torchs_allocator",),
    ),
    Mutation(
        "plan: a hypothesis has a cache of keys alone",
        "saccade/plan/memory.py",
        "each = 2 * decoder.num_layers * one",
        "each = decoder.num_layers * one",
        (f"{MEMORY}::test_the_caches_of_decoding_are_those_of_the_network",),
    ),
    Mutation(
        "plan: gradients are sent once",
        "saccade/plan/layout.py",
        "volume = 2 * share * weights * 4",
        "volume = share * weights * 4",
        (f"{LAYOUT}::test_data_parallel_sends_each_gradient_almost_twice",),
    ),
    Mutation(
        "plan: a short run looks for its fastest way",
        "saccade/plan/timing.py",
        "if len(modes) > 1 and step * (subject.steps or 0) >= LONG_ENOUGH_SECONDS:",
        "if len(modes) > 1:",
        ("tests/plan/test_command.py::test_the_ways_are_tried_that_training_would_try",),
    ),
    Mutation(
        "plan: an interval knows one floor",
        "saccade/plan/scaling.py",
        "return Forecast(parameters, tokens, best, min(lows), max(highs))",
        "return Forecast(parameters, tokens, best, best, best)",
        (f"{SCALING}::test_the_interval_holds_nine_of_ten_larger_runs",),
    ),
)

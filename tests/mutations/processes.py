"""Ways to break processes that train together and large corpora, and the tests that notice."""

from tests.mutations.mutation import Mutation

ASSIGNMENT = "tests/distributed/test_assignment.py"
LAYOUTS = "tests/distributed/test_layouts.py"
LARGE = "tests/data/test_large.py"

PROCESSES = (
    Mutation(
        "layouts: ranks that share heads read other rows",
        "saccade/distributed/mesh.py",
        "-(-rows * i // self.layout.rows) for i in (self.row_part, self.row_part + 1)",
        "rows * i // self.size for i in (self.rank, self.rank + 1)",
        (f"{ASSIGNMENT}::test_ranks_that_share_the_heads_read_the_same_rows",),
    ),
    Mutation(
        "layouts: a sum over shards is their mean",
        "saccade/distributed/parallelize.py",
        "module.set_gradient_divide_factor(1.0)",
        "module.set_gradient_divide_factor(2.0)",
        (f"{LAYOUTS}::test_two_processes_compute_what_one_does",),
    ),
    Mutation(
        "layouts: what heads in parts read has the gradient of one part",
        "saccade/distributed/tensor.py",
        "return full.to_local(grad_placements=SUMMED)\n\n\ndef summed",
        "return full.to_local()\n\n\ndef summed",
        (f"{LAYOUTS}::test_two_processes_compute_what_one_does",),
    ),
    Mutation(
        "layouts: gradients of weights in parts go round with every batch",
        "saccade/distributed/mesh.py",
        "network.set_requires_gradient_sync(last)",
        "network.set_requires_gradient_sync(True)",
        (f"{LAYOUTS}::test_two_processes_compute_what_one_does",),
    ),
    Mutation(
        "predict --shard: a line at a cut is in two parts",
        "saccade/data/lines.py",
        "    file.seek(at - 1)\n",
        "    return at\n",
        (f"{LARGE}::test_the_parts_of_a_file_are_all_of_it",),
    ),
)

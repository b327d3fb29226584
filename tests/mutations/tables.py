"""Ways to break masks, labels of characters and tables of numbers, and the tests that notice."""

from tests.mutations.mutation import Mutation

MASKS = "tests/laws/test_masks.py"
CHARACTERS = "tests/data/test_characters.py"
NUMBERS = "tests/data/test_tables_of_numbers.py"

TABLES = (
    Mutation(
        "padded: a label that is not scored counts",
        "saccade/nn/padded.py",
        "return tensor[marked if keep is None else marked & keep]",
        "return tensor if keep is None else tensor[keep]",
        (f"{MASKS}::test_loss_and_gradient_are_those_of_the_scored_positions",),
    ),
    Mutation(
        "padded: what is scored may be padding",
        "saccade/nn/padded.py",
        "marked if keep is None else marked & keep",
        "marked",
        (f"{MASKS}::test_a_masked_batch_is_its_rows",),
    ),
    Mutation(
        "tag: labels of spans are the likeliest one by one",
        "saccade/tasks/tag.py",
        "if self.following is None:",
        "if True:",
        ("tests/tasks/test_tasks.py::test_labels_of_spans_are_predicted_as_spans",),
    ),
    Mutation(
        "spans: the likeliest labels are not asked if they may follow each other",
        "saccade/decoding/spans.py",
        "if len(best) == 0 or (first[best[0]] and following[best[:-1], best[1:]].all()):",
        "if True:",
        ("tests/decoding/test_spans.py",),
    ),
    Mutation(
        "split: labels of source columns that training lacks stay in dev",
        "saccade/setup/split.py",
        "all(row.source[i] in of_column[i] for i in of_column)",
        "True",
        (
            "tests/setup/test_split.py::test_a_label_of_a_source_that_training_lacks_is_not_in_the_cut",
        ),
    ),
    Mutation(
        "tag: metrics look at every label",
        "saccade/tasks/tag.py",
        "scored = [i for i in range(n) if labels[i] != UNSCORED_ID]",
        "scored = [*range(n)]",
        (f"{MASKS}::test_accuracy_is_that_of_the_scored_labels",),
    ),
    Mutation(
        "cells: a mask is read the other way round",
        "saccade/data/cells.py",
        'UNSCORED if mark == "0"',
        'UNSCORED if mark == "1"',
        (f"{CHARACTERS}::test_strings_as_long_as_their_labels_are_read_by_character",),
    ),
    Mutation(
        "columns: a broken mask is taken for labels",
        "saccade/data/columns.py",
        "if marks[key] >= 0.9 * len(cells)",
        "if marks[key] == len(cells)",
        (f"{CHARACTERS}::test_lengths_that_differ_are_told_with_their_line",),
    ),
    Mutation(
        "columns: any digits are numbers",
        "saccade/data/columns.py",
        "if not (fractions or (is_label and len(vector) >= MANY_NUMBERS)):",
        "if not vector:",
        (
            f"{NUMBERS}::test_digits_of_texts_stay_text",
            f"{NUMBERS}::test_many_columns_of_whole_numbers_are_a_vector_if_the_target_is_a_label",
        ),
    ),
    Mutation(
        "cells: numbers that are not finite are read",
        "saccade/data/cells.py",
        'return match is not None and abs(float(match[0])) < float("inf")',
        "return match is not None",
        (f"{NUMBERS}::test_a_cell_without_a_number_is_told_with_its_line",),
    ),
    Mutation(
        "headers: a name over labels is one of them",
        "saccade/data/tables.py",
        "if enough and name and recur and (likely or _is_usual(name, known)):",
        "if False:",
        ("tests/data/test_tables.py::test_a_header_of_several_words_is_a_header",),
    ),
    Mutation(
        "headers: a rare label is one",
        "saccade/data/tables.py",
        "and min(values.values()) > 1",
        "",
        ("tests/data/test_tables.py::test_a_label_is_no_header_of_its_column",),
    ),
)

"""Ways to break what helps where examples are few, and the tests that notice."""

from tests.mutations.mutation import Mutation

BAGS = "tests/models/test_bags.py"
DROPPED = "tests/nn/test_dropped.py"
SPELLED = "tests/models/test_spelled.py"

SMALL_DATA = (
    Mutation(
        "bags: padding is added, too",
        "saccade/models/encoders.py",
        "values = values * read.keep.unsqueeze(-1)",
        "pass",
        (BAGS,),
    ),
    Mutation(
        "bags: tags are read in their order",
        "saccade/data/fields.py",
        "[sorted(ids) for ids in column]",
        "[list(ids) for ids in column]",
        (BAGS,),
    ),
    Mutation(
        "bags: letters do not know their tags",
        "saccade/models/encoders.py",
        "Padded(part.values + bag, part.lengths) if ordered else part",
        "part",
        (BAGS,),
    ),
    Mutation(
        "weight dropout: in evaluation, too",
        "saccade/nn/recurrent.py",
        "if self.training and self.weight_dropout:",
        "if self.weight_dropout:",
        (DROPPED,),
    ),
    Mutation(
        "weight dropout: the weights of the input are dropped",
        "saccade/nn/recurrent.py",
        'if dropped and name.startswith("weight_hh"):',
        'if dropped and name.startswith("weight_ih"):',
        (f"{DROPPED}::test_recurrent_weights_are_dropped_in_training_alone",),
    ),
    Mutation(
        "weight dropout: a part of a batch drops other weights",
        "saccade/nn/recurrent.py",
        "with slice_of(None):  # weights have no rows",
        "if True:  # weights have no rows",
        (f"{DROPPED}::test_dropped_recurrent_weights_are_the_same_for_all_rows_and_steps",),
    ),
    Mutation(
        "spelled words: a convolution sees the next word",
        "saccade/nn/stems.py",
        "spelled = F.relu(self.near((x * letter).mT)).mT * letter",
        "spelled = F.relu(self.near(x.mT)).mT * letter",
        (f"{SPELLED}::test_a_word_is_known_by_its_characters_and_by_no_others",),
    ),
    Mutation(
        "spelled words: a part of a batch is narrower than the whole",
        "saccade/nn/stems.py",
        "W = most_words(int(lengths.max()))",
        "W = int(lengths.max())",
        (f"{SPELLED}::test_part_of_a_batch_is_as_wide_as_the_whole",),
    ),
    Mutation(
        "hallucinated pairs: each side has letters of its own",
        "saccade/data/hallucinate.py",
        "new_source[src.start + a] = new_target[tgt.start + b] = letter",
        "new_source[src.start + a] = letter",
        ("tests/data/test_hallucinate.py",),
    ),
    Mutation(
        "hallucinated pairs: the same in every epoch",
        "saccade/data/hallucinate.py",
        "np.random.default_rng([seed, epoch, row])",
        "np.random.default_rng([seed, row])",
        ("tests/data/test_hallucinate.py",),
    ),
)

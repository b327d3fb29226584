"""Ways to break word vectors, copying and trees, and the tests that notice."""

from tests.mutations.mutation import Mutation

WORD2VEC = "tests/nn/test_word2vec.py"
NEIGHBOURHOODS = "tests/data/test_neighbourhoods.py"
VECTORS = "tests/tasks/test_vectors.py"
POINTER = "tests/models/test_pointer.py"
BRACKETS = "tests/decoding/test_brackets.py"

WORDS = (
    Mutation(
        "word2vec: a shared negative weighs as if it were alone",
        "saccade/nn/word2vec.py",
        "return self.negatives / self.noise.size(1)",
        "return 1.0",
        (WORD2VEC,),
    ),
    Mutation(
        "word2vec: a word is its own context",
        "saccade/nn/word2vec.py",
        "(inside & (offset != 0)).to(dtype)",
        "inside.to(dtype)",
        (WORD2VEC,),
    ),
    Mutation(
        "word2vec: context reaches into the next line",
        "saccade/data/neighbourhoods.py",
        "cuts = np.flatnonzero(np.diff(line)) + 1",
        "cuts = np.zeros(0, np.int64)",
        (NEIGHBOURHOODS,),
    ),
    Mutation(
        "word2vec: noise is drawn by the counts themselves",
        "saccade/data/neighbourhoods.py",
        "counts.astype(np.float64) ** power",
        "counts.astype(np.float64)",
        (NEIGHBOURHOODS,),
    ),
    Mutation(
        "word2vec: all gradients of a step are computed at the same point",
        "saccade/nn/word2vec.py",
        "vectors = _rows(x.values, at_x), _rows(y.values, at_y)",
        "vectors = _rows(inputs, x_ids[rows][part]), _rows(outputs, y_ids[rows][part])",
        (WORD2VEC,),
    ),
    Mutation(
        "word2vec: a row that is read often moves by the sum of all",
        "saccade/nn/word2vec.py",
        "by *= (limit / times).clamp_(max=1.0)[index, None]",
        "by *= 1.0",
        (f"{WORD2VEC}::test_a_row_is_updated_by_fewer_gradients_the_smaller_the_vocabulary",),
    ),
    Mutation(
        "copying: the padding of a source is copied, too",
        "saccade/nn/pointer.py",
        "weights = attention_weights(scores, keep)",
        "weights = attention_weights(scores, None)",
        (POINTER,),
    ),
    Mutation(
        "trees: a tree may be cut off by the limit",
        "saccade/decoding/steps.py",
        "allowed &= needed < left[:, None]",
        "allowed &= left[:, None] > 0",
        (BRACKETS,),
    ),
    Mutation(
        "trees: a second tree may follow the first",
        "saccade/decoding/steps.py",
        "needs = max(needs, 1 - depth)",
        "needs = max(needs, 0)",
        (BRACKETS,),
    ),
)

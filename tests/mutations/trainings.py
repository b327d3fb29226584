"""Ways to break training, measuring, tokenizers and batches, and the tests that notice."""

from tests.mutations.mutation import Mutation

STEP = "tests/training/test_step.py"
OPTIM = "tests/training/test_optim.py"
PATIENCE = "tests/training/test_patience.py"
LANGUAGE = "tests/laws/test_language.py"
TEXT_METRICS = "tests/metrics/test_text_metrics.py"
LABEL_METRICS = "tests/metrics/test_label_metrics.py"
TOKENIZERS = "tests/text/test_tokenizers.py"
PIECES = "tests/text/test_pieces.py"
BATCHES = "tests/data/test_batches.py"
START = "tests/training/test_start.py"

TRAINING = (
    Mutation(
        "start: processes that share batches let frozen layers decay",
        "saccade/distributed/ranks.py",
        "            if parameter.requires_grad:",
        "            if True:",
        (f"{START}::test_two_processes_unfreeze_as_one_does",),
    ),
    Mutation(
        "start: what is taken over learns, frozen or not",
        "saccade/training/tune.py",
        "parameter.requires_grad_(trainable[name])",
        "parameter.requires_grad_(True)",
        (f"{START}::test_what_is_frozen_stays_to_the_last_bit_and_costs_nothing",),
    ),
    Mutation(
        "start: ids of any vocabulary are taken for the same",
        "saccade/runs/start.py",
        "if part not in part_of or not _same_vocabulary(name, given):",
        "if part not in part_of:",
        (f"{START}::test_several_sources_begin_with_those_of_the_same_place",),
    ),
    Mutation(
        "start: an adapter is merged without its scale",
        "saccade/nn/lora.py",
        "torch.addmm(self.weight, self.widen, self.shrink, alpha=self.scale)",
        "torch.addmm(self.weight, self.widen, self.shrink)",
        (f"{START}::test_adapters_begin_as_nothing_and_are_merged_when_a_run_is_loaded",),
    ),
    Mutation(
        "step: a language model's state is never carried",
        "saccade/training/trainer.py",
        "self.carry = carry if result.finite else None",
        "self.carry = None",
        (STEP,),
    ),
    Mutation(
        "step: accumulated batches each begin anew",
        "saccade/training/gradients.py",
        "carry = concat(carries) if len(carries) > 1 else carries[0] if carries else None",
        "carry = None",
        (STEP,),
    ),
    Mutation(
        "step: the gradient is divided by rows",
        "saccade/training/trainer.py",
        "max(sums.count, 1)",
        "max(sum(batch.count for batch in batches), 1)",
        (STEP,),
    ),
    Mutation(
        "step: the network does not hear of progress",
        "saccade/training/gradients.py",
        "network(rows, state, progress)",
        "network(rows, state)",
        (STEP,),
    ),
    Mutation(
        "step: the same random numbers at every step",
        "saccade/training/gradients.py",
        "self.seed * 1_000_003 + step",
        "self.seed * 1_000_003",
        (STEP,),
    ),
    Mutation(
        "step: a gradient that is not finite reaches the weights",
        "saccade/training/trainer.py",
        "if result.finite:\n            self.doing",
        "if True:\n            self.doing",
        (STEP,),
    ),
    Mutation(
        "step: the lower rate after going back is forgotten",
        "saccade/training/trainer.py",
        "at.plateau) * at.rate_scale",
        "at.plateau)",
        (STEP,),
    ),
    Mutation(
        "step: slices draw anew",
        "saccade/training/gradients.py",
        "set_random_state(before, self.device)\n            state",
        "state",
        (STEP,),
    ),
    Mutation(
        "evaluation: the last weights, not their average",
        "saccade/training/trainer.py",
        "self.network.eval()\n        swap()\n",
        "self.network.eval()\n",
        (STEP,),
    ),
    Mutation(
        "patience: the counter is never reset",
        "saccade/training/trainer.py",
        "at.best, at.since_best = standing, 0",
        "at.best = standing",
        (PATIENCE,),
    ),
    Mutation(
        "patience: one evaluation more",
        "saccade/training/loop.py",
        "trainer.at.since_best >= patience",
        "trainer.at.since_best > patience",
        (PATIENCE,),
    ),
    Mutation(
        "plateau: the rate stays",
        "saccade/training/trainer.py",
        "at.plateau *= 0.5",
        "at.plateau *= 1.0",
        (PATIENCE,),
    ),
    Mutation(
        "best: a higher loss decides",
        "saccade/training/trainer.py",
        'standing = (value, -scores["loss"])',
        'standing = (value, scores["loss"])',
        (PATIENCE,),
    ),
    Mutation(
        "optimizer: weight decay on biases",
        "saccade/training/optim.py",
        '"weight_decay": 0.0, "scale"',
        '"weight_decay": train.weight_decay, "scale"',
        (OPTIM,),
    ),
    Mutation(
        "optimizer: no momentum",
        "saccade/training/optim.py",
        "momentum=train.momentum, ",
        "",
        (OPTIM,),
    ),
    Mutation(
        "rate: a warm-up longer than the run",
        "saccade/training/optim.py",
        "max(step / max(train.warmup, 1), progress / 0.1)",
        "step / max(train.warmup, 1)",
        (OPTIM,),
    ),
    Mutation(
        "rate: noam without its root",
        "saccade/training/optim.py",
        "sqrt(max(train.warmup, 1) / step)",
        "max(train.warmup, 1) / step",
        (OPTIM,),
    ),
    Mutation(
        "clip: the norm of the sum",
        "saccade/training/optim.py",
        "get_total_norm(gradients) / count",
        "get_total_norm(gradients)",
        (OPTIM,),
    ),
    Mutation(
        "average: slow from the first step on",
        "saccade/training/optim.py",
        "min(self.decay, (1 + step) / (10 + step))",
        "self.decay",
        (OPTIM,),
    ),
)

MEASURES = (
    Mutation(
        "evaluation: a language model's state is never carried",
        "saccade/tasks/language.py",
        "loss, state = network(batch.to(device_of(network)), state)",
        "loss, _ = network(batch.to(device_of(network)), state)",
        (LANGUAGE,),
    ),
    Mutation(
        "evaluation: bits per character by tokens",
        "saccade/tasks/language.py",
        "nll / log(2) / max(characters - 1, 1)",
        "nll / log(2) / count",
        (LANGUAGE,),
    ),
    Mutation(
        "spans: neighbours of one type are one",
        "saccade/metrics/labels.py",
        '(mark == "B" or now != inside)',
        "now != inside",
        (LABEL_METRICS,),
    ),
    Mutation(
        "labels: those guessed in vain do not count",
        "saccade/metrics/labels.py",
        "for label in sorted(wanted | given)",
        "for label in sorted(wanted)",
        (LABEL_METRICS,),
    ),
    Mutation(
        "error rate: the shortest of equally close references",
        "saccade/metrics/text.py",
        "(Levenshtein.distance(ours, ref), -len(ref))",
        "(Levenshtein.distance(ours, ref), len(ref))",
        (TEXT_METRICS,),
    ),
    Mutation(
        "similarity: the unit is ignored",
        "saccade/metrics/text.py",
        "token_error_rate([text], [[other]], unit=unit)",
        "token_error_rate([text], [[other]])",
        ("tests/metrics/test_similarity.py",),
    ),
    Mutation(
        "bleu: references beyond the shortest list are lost",
        "saccade/metrics/text.py",
        "zip_longest(*references)",
        "zip(*references)",
        (TEXT_METRICS,),
    ),
    Mutation(
        "bpe: merges are reversed",
        "saccade/text/tokenizers.py",
        "models.BPE(_number(pieces), merges, unk_token=_UNK)",
        "models.BPE(_number(pieces), merges[::-1], unk_token=_UNK)",
        (PIECES,),
    ),
    Mutation(
        "vocabulary: one count more is asked for",
        "saccade/text/tokenizers.py",
        "if n >= config.min_count]",
        "if n > config.min_count]",
        (TOKENIZERS,),
    ),
    Mutation(
        "batches: every epoch in the same order",
        "saccade/data/batches.py",
        "rng = np.random.default_rng([seed, epoch])",
        "rng = np.random.default_rng([seed])",
        (f"{BATCHES}::test_epochs_differ",),
    ),
    Mutation(
        "batches: a chunk ends one token early",
        "saccade/data/batches.py",
        "stops = np.minimum(stops + 1, len(self.ids))",
        "stops = np.minimum(stops, len(self.ids))",
        (f"{BATCHES}::test_a_carried_stream_predicts_every_token_once_in_order",),
    ),
)

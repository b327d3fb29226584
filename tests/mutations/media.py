"""Ways to break the reading of media, and the tests that notice."""

from tests.mutations.mutation import Mutation

FIELDS = "tests/data/test_fields_of_media.py"
LAWS = "tests/laws/test_media.py"
COMMANDS = "tests/cli/test_media.py"
CTC = "tests/decoding/test_ctc.py"

CAPTIONS = "tests/metrics/test_caption_metrics.py"

MEDIA = (
    Mutation(
        "captions: CIDEr counts a repeated n-gram again",
        "saccade/metrics/captions.py",
        "min(weight, other) * other",
        "weight * other",
        (f"{CAPTIONS}::test_a_repeated_ngram_gains_nothing",),
    ),
    Mutation(
        "captions: punctuation counts",
        "saccade/metrics/captions.py",
        "if any(map(str.isalnum, word))]",
        "if word]",
        (f"{CAPTIONS}::test_case_and_punctuation_do_not_count",),
    ),
    Mutation(
        "captions: a path begins with the question's positions",
        "saccade/inspect/captions.py",
        "alignment.mean[:, span.start : span.stop]",
        "alignment.mean[:, : len(span)]",
        ("tests/inspect/test_captions.py::test_the_cells_stand_after_a_question",),
    ),
    Mutation(
        "pictures: what lies between two bends is not between them",
        "saccade/data/pictures.py",
        "np.maximum(0.0, 1.0 - np.abs(places[:, None] - np.arange(BENDS)))",
        "np.maximum(0.0, 1.0 - np.rint(np.abs(places[:, None] - np.arange(BENDS))))",
        (f"{FIELDS}::test_a_bent_picture_moves_by_the_share_that_is_said_at_most",),
    ),
    Mutation(
        "numbers: the error of an angle goes the long way round",
        "saccade/data/targets.py",
        "return right + (guess - right + turn / 2) % turn - turn / 2",
        "return guess",
        ("tests/data/test_targets.py::test_the_error_of_an_angle_is_the_shorter_way_round",),
    ),
    Mutation(
        "pictures: a sheared one is not turned",
        "saccade/data/pictures.py",
        "seen = (turned @ [[1.0, 0.0], [slant, 1.0]]) * scale",
        "seen = np.array([[1.0, 0.0], [slant, 1.0]]) * scale",
        (f"{FIELDS}::test_a_picture_is_turned_about_its_middle_by_what_is_drawn",),
    ),
    Mutation(
        "bag of words: the marks at both ends count",
        "saccade/models/heads.py",
        "gold = Padded(target.values[:, 1:], (target.lengths - 2).clamp(min=0))",
        "gold = Padded(target.values[:, 1:], (target.lengths - 1).clamp(min=0))",
        ("tests/models/test_heads.py",),
    ),
    Mutation(
        "pictures: small ones are scaled up",
        "saccade/setup/media.py",
        "side = min(64, wide, high)",
        "side = 64",
        ("tests/setup/test_pictures.py::test_pictures_are_not_scaled_up_and_strips_stay_strips",),
    ),
    Mutation(
        "stems: a strided convolution sees padding",
        "saccade/nn/stems.py",
        "                x = x * keep.unsqueeze(-1)\n            x = F.gelu",
        "                x = x * 1.0\n            x = F.gelu",
        (f"{LAWS}::test_padding_is_invisible_whatever_it_holds",),
    ),
    Mutation(
        "bodies: a pyramid forgets to shorten its lengths",
        "saccade/nn/bodies.py",
        "lengths = (lengths + 1) // 2",
        "lengths = lengths // 2 + 1",
        (
            f"{LAWS}::test_a_batch_is_its_rows",
            f"{LAWS}::test_a_strided_stem_shortens_and_a_pyramid_halves",
        ),
    ),
    Mutation(
        "pictures: the tag that says how to turn is not obeyed",
        "saccade/data/pictures.py",
        "turned = operations.exif_transpose(image)",
        "turned = image",
        (f"{FIELDS}::test_a_picture_is_turned_as_its_tag_says",),
    ),
    Mutation(
        "pictures: augmented in evaluation, too",
        "saccade/data/media.py",
        "            return self.field.collate([self.row(int(i)) for i in rows], None)",
        "            draw = (0, 0)",
        (f"{FIELDS}::test_augmentation_is_decided_by_seed_epoch_and_row_alone",),
    ),
    Mutation(
        "paths: a link may lead anywhere",
        "saccade/data/media.py",
        "os.path.commonpath([limit, os.path.realpath(path)])",
        "os.path.commonpath([limit, os.path.abspath(path)])",
        (f"{FIELDS}::test_paths_stay_in_their_folder_unless_a_root_permits_more",),
    ),
    Mutation(
        "paths: a run's own root is obeyed",
        "saccade/training/session.py",
        "_reopened(own_paths(with_root(config, root), folder), folder)",
        "_reopened(own_paths(config, folder), folder)",
        (f"{COMMANDS}::test_train_refuses_paths_that_leave_the_folder",),
    ),
    Mutation(
        "sound: the mel scale has no knee",
        "saccade/data/sounds.py",
        "return torch.where(mels < MELS_AT_KNEE, mels * KNEE_HERTZ / MELS_AT_KNEE, above)",
        "return above",
        (f"{FIELDS}::test_log_mel_is_librosas",),
    ),
    Mutation(
        "columns: every example keeps a copy of its picture",
        "saccade/data/media.py",
        "            if cell.key not in self.numbers:\n",
        "            if True:\n",
        (f"{COMMANDS}::test_each_file_is_kept_once_however_many_examples_name_it",),
    ),
    Mutation(
        "ctc: the same token twice needs no blank between",
        "saccade/decoding/ctc.py",
        "    same = (tokens == prefix.last)[:, None]\n",
        "    same = torch.zeros_like(tokens, dtype=torch.bool)[:, None]\n",
        (f"{CTC}::test_a_whole_text_has_the_score_of_torchs_ctc_loss",),
    ),
    Mutation(
        "ctc: positions beyond a source's end are heard",
        "saccade/decoding/ctc.py",
        "        log_probs = torch.where(keep.unsqueeze(-1), log_probs, only_blank)\n",
        "        log_probs = torch.where(keep.unsqueeze(-1), log_probs, log_probs)\n",
        (f"{CTC}::test_a_batch_is_its_rows_in_every_search",),
    ),
    Mutation(
        "ctc: the run's own share is forgotten",
        "saccade/tasks/generate.py",
        "return config.train.ctc if decode.ctc is None else decode.ctc",
        "return decode.ctc or 0.0",
        ("tests/tasks/test_ctc.py",),
    ),
    Mutation(
        "sound: the mean of each is left in",
        "saccade/data/numbers.py",
        "((centred(series, self.reader) - self.mean)",
        "((series - self.mean)",
        (f"{FIELDS}::test_what_a_microphone_adds_to_every_frame_is_taken_away",),
    ),
)

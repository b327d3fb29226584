"""What there is to see of one input: by the kind of its source, one drawing."""

from pathlib import Path

from saccade.data.media import MediaField
from saccade.data.pictures import PictureField
from saccade.data.sounds import SoundField
from saccade.errors import ConfigError
from saccade.inspect import attention, captions, filled, speech
from saccade.models.networks import Generator, TokenPredictor
from saccade.runs.run import Run
from saccade.tasks.pretrain import Fill, Restore
from saccade.tasks.translate import Translate


def inspect(
    run: Run,
    item: str | tuple[str, ...],
    out: str | Path,
    target: str = "",
    layer: int | None = None,
) -> str:
    """Draw how a run's output attends to its input, and return the output.

    The output is `target`, or what the run predicts. Of a picture the path over it is drawn, by
    the last layer of attention; of a sound when each token was heard, and of other sources the
    alignment, by the mean of all layers; `layer` says which one instead. Of a text in which <mask>
    is to be filled in, what its tokens attend to.
    """
    task, network = run.task, run.network
    if task.fills and isinstance(item, str):
        if target:
            raise ConfigError("target: what is missing is filled in by the run: leave it out")
        if isinstance(task, Fill) and isinstance(network, TokenPredictor):
            alignment = filled.own_attention(task, network, item)
            text = run.predict([item])[0].text or item
        else:
            assert isinstance(task, Restore)
            assert isinstance(network, Generator)
            text, alignment = filled.restored(task, network, item)
        attention.draw_picture(alignment if layer is None else alignment.only(layer), out)
        return text
    if not isinstance(task, Translate) or not isinstance(network, Generator):
        raise ConfigError(
            f"the task '{run.config.task.kind}' has no decoder that attends to a source: there is "
            "nothing to draw"
        )
    source = run.source_of(item)
    text = target or run.predict([source])[0].text
    match next((field for field in task.sources if isinstance(field, MediaField)), None):
        case PictureField():
            last = -1 if layer is None else layer
            captions.draw_path(captions.caption_path(task, network, source, text, last), out)
        case SoundField() if len(task.sources) == 1:
            heard = speech.hear(task, network, source, text, layer)
            speech.draw_speech(heard, out, text)
        case _:
            alignment = attention.align(task, network, source, text)
            attention.draw_picture(alignment if layer is None else alignment.only(layer), out)
    return text

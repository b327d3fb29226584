"""Attention of 512 tokens, 12 layers and 16 heads: how long a person waits for it."""

import pytest

from saccade.runs.run import Run
from saccade.serve.http import create_app
from saccade.setup.choose import fill_config, gather
from saccade.setup.prepare import prepare
from tests.browser.conftest import serving
from tests.helpers import corpus

LARGE = {"kind": "transformer", "dim": 64, "num_layers": 12, "num_heads": 16, "ff_dim": 64}
# From the answer to the first view, and from a click to another head, in milliseconds.
FIRST, SWITCH = 1000, 100
WAITED = """async ([layer, head]) => {
  performance.clearMarks();
  const box = document.querySelector('select[aria-label=head]');
  const begun = performance.now();
  box.value = head;
  box.dispatchEvent(new Event('change'));
  while (!performance.getEntriesByName('attention').length)
    await new Promise(r => setTimeout(r, 1));
  return performance.getEntriesByName('attention').at(-1).startTime - begun;
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    raw, where = gather(corpus(folder, "translate"), task="translate")
    raw |= {"encoder": LARGE, "decoder": LARGE, "decode": {"max_len": 8, "width": 1}}
    config, _ = fill_config(raw, where)
    task = prepare(config, folder).task
    run = Run(folder, config, task, task.build().eval())
    with serving(create_app({"large": run})) as address:
        yield address


@pytest.mark.slow  # it measures time: on a busy machine it says nothing
def test_the_first_view_takes_a_second_and_another_head_a_tenth(page):
    one = page(f"run=large&view=attention&o.layer=0&o.head=0&in={'abcd' * 128}")
    one.wait_for_selector(".heat canvas")
    assert one.locator(".ends.right li").count() >= 512
    first = one.evaluate(
        """() => performance.getEntriesByName('attention')[0].startTime - performance
           .getEntriesByType('resource').filter(e => e.name.endsWith('/inspect'))[0].responseEnd"""
    )
    assert first < FIRST
    waited = sorted(one.evaluate(WAITED, [0, str(head)]) for head in range(1, 16))
    print(f"first view {first:.0f} ms after its answer, another head {waited} ms")
    assert waited[len(waited) // 2] < SWITCH

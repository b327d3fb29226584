// The views of a run: what each is called, what it shows, what it asks for, and how it is drawn.

import * as attention from "./view_attention.js";
import * as media from "./view_media.js";
import * as runs from "./view_runs.js";
import * as text from "./view_text.js";
import * as tree from "./view_tree.js";
import * as vectors from "./view_vectors.js";

const VIEWS = [
  {
    kind: "caption_path",
    title: "Gaze",
    about: "Where the eye was on the picture, word by word.",
    needsInput: true,
    ...media.path,
  },
  {
    kind: "speech",
    title: "Heard",
    about: "When each token was heard, under the waveform.",
    needsInput: true,
    ...media.speech,
  },
  {
    kind: "forecast",
    title: "Forecast",
    about: "The series, how they go on, and how sure that is.",
    needsInput: true,
    ...media.forecast,
  },
  {
    kind: "attention",
    title: "Attention",
    about: "Which tokens each token looked at. Point at one, or choose a head.",
    needsInput: true,
    ...attention.view,
  },
  {
    kind: "tree",
    title: "Beam",
    about:
      "Every continuation the search looked at. Faded ones were dropped; point at one for the reason.",
    needsInput: true,
    ...tree.view,
  },
  {
    kind: "tokens",
    title: "Surprisal",
    about: "How unexpected each token was, in bits: the taller, the less likely.",
    needsInput: true,
    ...text.surprisal,
  },
  {
    kind: "saliency",
    title: "Saliency",
    about: "Which tokens of the input the answer hangs on.",
    needsInput: true,
    ...text.saliency,
  },
  {
    kind: "flow",
    title: "Gradient flow",
    about: "How much an early position still matters to a later one.",
    needsInput: true,
    ...text.flow,
  },
  {
    kind: "vectors",
    title: "Neighbours",
    about: "The nearest words, and a is to b as c is to what?",
    ...vectors.words,
  },
  {
    kind: "embeddings",
    title: "Embeddings",
    about: "The model's table of tokens: nearest neighbours, and a map of the frequent ones.",
    ...vectors.embeddings,
  },
  {
    kind: "positions",
    title: "Positions",
    about: "What is added for each position, and how alike two positions are.",
    ...vectors.positions,
  },
  {
    kind: "curves",
    title: "Training",
    about: "The loss and the scores on dev while it learned.",
    ...runs.curves,
  },
  {
    kind: "worst",
    title: "Worst examples",
    about: "Where the run does worst on its own dev set. Take one to try it.",
    ...runs.worst,
  },
];

export function viewsOf(run) {
  const has = new Set([
    ...run.views,
    ...(run.vectors ? ["vectors"] : []),
    "curves",
    ...(run.vectors ? [] : ["worst"]),
  ]);
  return VIEWS.filter((view) => has.has(view.kind));
}

// The settings of the search beside the answer: of a beam, or of sampling.

import { choice, debounce, el, field, segments } from "./dom.js";

const int = (min, max, title) => ({ type: "number", min, max, step: 1, title });
const real = (min, max, step, title) => ({ type: "number", min, max, step, title });

const BEAM = {
  width: ["Beam width", int(1, 16, "How many beginnings are kept at each step; 1 is greedy")],
  alpha: [
    "Length exponent",
    real(0, 5, 0.1, "Scores are divided by length to this power: higher favours longer answers"),
  ],
  coverage: ["Coverage", real(0, 5, 0.1, "A penalty on source tokens that nothing looked at")],
  groups: ["Groups", int(1, 16, "Of the beam, that keep away from each other's words")],
};
const SAMPLE = {
  temperature: ["Temperature", real(0.05, 5, 0.05, "Below 1 sharper, above 1 flatter")],
  top_k: ["Top k", int(1, 100000, "Only the so many likeliest tokens; empty is all")],
  top_p: ["Top p", real(0.01, 1, 0.01, "Only the likeliest that together have this probability")],
  min_p: [
    "Min p",
    real(0, 0.99, 0.01, "Only those with at least this share of the likeliest's probability"),
  ],
  seed: ["Seed", int(0, 1e15, "The same seed draws the same text")],
};
const BOTH = {
  max_len: ["Longest answer", int(1, 10000, "In tokens")],
  min_len: ["Shortest answer", int(0, 1000, "In tokens")],
  no_repeat: ["No repeated n-gram", int(0, 20, "No so many tokens in a row come twice; 0 is off")],
  repetition: [
    "Repetition penalty",
    real(1, 5, 0.05, "Makes tokens that were said before less likely"),
  ],
};
const MAIN = new Set(["width", "alpha", "temperature", "top_k", "top_p", "seed", "max_len"]);

/** How the answer is found unless somebody chooses: a language model writes on, others search as their run says. */
export const kindOf = (run, settings) =>
  settings.kind ?? (run.task === "language" ? "sample" : (run.decode?.kind ?? "beam"));

/** The settings as the server takes them: those of the chosen kind that a person has changed. */
export function requested(run, settings) {
  const kind = kindOf(run, settings);
  const own = kind === "beam" ? BEAM : SAMPLE;
  const found = kind === run.decode?.kind ? {} : { kind };
  for (const [key, value] of Object.entries(settings))
    if ((key in own || key in BOTH) && value !== null && value !== "") found[key] = value;
  return found;
}

/** The same for a view of a search: what samples are drawn by has no part in it. */
export function searched(run, settings) {
  const found = Object.entries(requested(run, settings)).filter(([key]) => key !== "kind");
  return Object.fromEntries(
    isSampling(run, settings) ? found.filter(([key]) => key in BOTH) : found,
  );
}

export const isSampling = (run, settings) => kindOf(run, settings) === "sample";

/** A form; `change(settings, nbest)` is called with every change. */
export function settingsForm(run, side, change) {
  const kind = kindOf(run, side.settings);
  const language = run.task === "language";
  const soon = debounce(() => change(), 200);
  const form = el("div", {
    class: "settings",
    role: "group",
    "aria-label": "settings of the search",
  });
  form.append(
    segments(
      [
        ["beam", "Search"],
        ["sample", "Sample"],
      ],
      kind,
      (value) => {
        side.settings = Object.assign(Object.create(null), { kind: value });
        if (value === "sample") side.nbest = 1;
        change(true);
      },
      "how the answer is found",
    ),
  );
  const more = el("div", { class: "more" });
  for (const [key, [label, props]] of Object.entries({
    ...(kind === "beam" ? BEAM : SAMPLE),
    ...BOTH,
  })) {
    const { title, ...attributes } = props;
    const given = kind === run.decode?.kind ? run.decode?.[key] : null;
    const box = el("input", {
      ...attributes,
      inputmode: "decimal",
      placeholder:
        given ?? { width: 5, alpha: 1, temperature: 1, top_p: 1, seed: 1, max_len: 200 }[key] ?? "",
      value: side.settings[key] ?? "",
      on: {
        input: () => {
          const value = box.value === "" ? null : Number(box.value);
          if (value !== null && !box.checkValidity()) return;
          if (value === null) delete side.settings[key];
          else side.settings[key] = value;
          soon();
        },
      },
    });
    (MAIN.has(key) ? form : more).append(field(label, box, title));
  }
  if (!language || kind === "beam") {
    const most = kind === "beam" ? Math.min(16, side.settings.width ?? run.decode?.width ?? 5) : 16;
    const options = [1, 2, 3, 5, 8, 10, 16].filter((n) => n <= most);
    form.append(
      field(
        "Answers",
        choice(
          options,
          side.nbest,
          (value) => {
            side.nbest = Number(value);
            change();
          },
          "how many answers",
        ),
        "The best so many",
      ),
    );
  }
  form.append(el("details", {}, el("summary", {}, "More"), more));
  return form;
}

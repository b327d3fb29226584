// An answer as it is shown, by task: tokens of a translation, labels with probabilities, tags under their words,
// a text that goes on, blanks that were filled.

import { button, el, number, percent, shown, spelled } from "./dom.js";
import { END, bars, popover, tokenText } from "./tokens.js";

const FEW_LABELS = 12;
const IMPOSSIBLE = -1e9; // the log-probability of what cannot be

/** The nodes of a prediction. `side` gives what was asked and what a click does. */
export function answerNodes(side, prediction) {
  if (prediction.problem) return [problem(prediction.problem)];
  if (prediction.labels?.length) return [labelBars(prediction.labels)];
  if (prediction.tags) return [tagged(side, prediction.tags)];
  if (side.run.fills) return filled(side, prediction);
  return searched(side, prediction);
}

export const problem = (message) => el("p", { class: "problem", role: "alert" }, shown(message));

function labelBars(labels) {
  const rows = labels
    .slice(0, FEW_LABELS)
    .map((label, i) => ({ text: label.text, value: label.p, of: 1, chosen: i === 0 }));
  const rest = labels.length - rows.length;
  return el(
    "div",
    { class: "verdict" },
    bars(rows, { label: "labels and their probabilities" }),
    rest > 0 ? el("p", { class: "hint" }, `and ${rest} less likely`) : null,
  );
}

function tagged(side, tags) {
  return el(
    "p",
    { class: "tagged", dir: "auto" },
    tags
      .map((tag, i) => {
        const word = el(
          "button",
          {
            type: "button",
            class: "glossed",
            style: { "--sure": (tag.p ?? 1).toFixed(3) },
            "aria-label": `${spelled(tag.word)}: ${spelled(tag.label)}${tag.p === undefined ? "" : `, ${percent(tag.p)}`}`,
            on: { click: () => tagChoices(side, word, i, tag) },
          },
          el("span", { class: "word" }, shown(tag.word)),
          el("span", { class: "tag" }, shown(tag.label)),
        );
        return [word, " "];
      })
      .flat(),
  );
}

async function tagChoices(side, anchor, i, tag) {
  let labels = tag.labels;
  if (!labels) {
    popover(anchor, "labels", el("p", { class: "hint" }, "asking …"));
    try {
      const view = await side.inspect("labels", {});
      labels = view.labels[i].labels;
    } catch (error) {
      popover(anchor, "labels", problem(error.message));
      return;
    }
  }
  const rows = labels.slice(0, 8).map((label) => ({
    text: label.text,
    value: label.p,
    of: 1,
    chosen: label.text === tag.label,
  }));
  popover(
    anchor,
    `labels of ${spelled(tag.word)}`,
    el("p", { class: "facts" }, el("b", {}, shown(tag.word))),
    bars(rows, { label: "labels" }),
  ).tabIndex = -1;
}

/** The text of an answer, cut where the blanks were: [text, whether it was filled in]. */
export function fillParts(template, text) {
  const parts = template.split("<mask>").map((part) => part.trim());
  const found = [];
  let at = 0;
  parts.forEach((part, i) => {
    const last = i === parts.length - 1;
    const least = i === 0 ? at : text.slice(at).search(/\S|$/) + at + 1; // a blank is not left empty
    const start = last && i > 0 ? text.lastIndexOf(part) : text.indexOf(part, least);
    if (start < at) return; // it is written otherwise: what is left stands at the end
    if (i > 0) found.push([text.slice(at, start), true]);
    found.push([part, false]);
    at = start + part.length;
  });
  found.push([text.slice(at), false]);
  return found.filter(([one]) => one.trim());
}

function filled(side, prediction) {
  const template = side.input[0] ?? "";
  const line = (text) =>
    fillParts(template, text)
      .map(([part, blank]) => [
        " ",
        el("span", { class: blank ? "filled" : "" }, shown(part.trim())),
        " ",
      ])
      .flat();
  return [
    el("p", { class: "tokens plain", dir: "auto" }, line(prediction.text)),
    runnersUp(side, prediction, line),
  ];
}

function searched(side, prediction) {
  const nodes = [];
  if (side.prefix) nodes.push(forcedNote(side));
  if (prediction.tokens?.length) {
    const forced = side.run.task === "language" ? side.prefix : ""; // read, so none of the answer's
    const shift = forced ? 1 : 0;
    const tokens = prediction.tokens.map(asToken).map((token) => after(forced, token));
    if (forced) tokens.unshift(forcedToken(forced));
    const text = tokenText(tokens, {
      pick: (prefix) => side.force(prefix),
      look: (index) =>
        side.look(index === null ? null : "target", index === null ? null : index - shift),
      forced: side.prefix,
      kind: side.kind("target"),
    });
    side.onLook((kind, index) => text.light(kind === "target" ? index + shift : null));
    nodes.push(text);
  } else {
    nodes.push(
      el(
        "p",
        { class: "tokens plain", dir: "auto" },
        prediction.text
          ? shown(prediction.text, true)
          : el("span", { class: "hint" }, "The answer is empty."),
      ),
    );
  }
  const facts = [`log p ${number(prediction.score)}`];
  if (prediction.tokens?.length)
    facts.push(`perplexity ${number(Math.exp(-prediction.score / prediction.tokens.length))}`);
  if (prediction.unknown)
    facts.push(`${prediction.unknown} of the characters or words are unknown to the model`);
  nodes.push(el("p", { class: "facts" }, facts.join(" · ")), runnersUp(side, prediction));
  return nodes;
}

/** Alternatives come as objects, or as pairs. */
export function asToken(token) {
  const alternatives = (token.alternatives ?? []).map((one) =>
    Array.isArray(one) ? { text: one[0], log_p: one[1] } : one,
  );
  const logP = (one) => one.log_p ?? IMPOSSIBLE;
  return {
    ...token,
    log_p: logP(token),
    alternatives: alternatives.map((one) => ({ ...one, log_p: logP(one) })),
  };
}

/** What a language model has to begin with, as one token. */
const forcedToken = (text) => ({ text, log_p: 0, prefix: text, alternatives: [] });

/** A token and its alternatives, with prefixes that begin with what was forced. */
function after(forced, token) {
  const longer = (one) => ({
    ...one,
    prefix: typeof one.prefix === "string" ? forced + one.prefix : one.prefix,
  });
  return { ...longer(token), alternatives: token.alternatives.map(longer) };
}

function runnersUp(side, prediction, line = (text) => shown(text)) {
  if (!prediction.others?.length) return null;
  const rows = prediction.others.map((other) =>
    Array.isArray(other) ? { text: other[0], score: other[1] } : other,
  );
  return el(
    "ol",
    { class: "nbest", start: 2, "aria-label": "further answers" },
    rows.map((row) =>
      el(
        "li",
        {},
        el("span", { dir: "auto" }, line(row.text)),
        el("span", { class: "value" }, number(row.score)),
      ),
    ),
  );
}

export function forcedNote(side) {
  return el(
    "p",
    { class: "note" },
    "The answer has to begin with “",
    el("b", { dir: "auto" }, shown(side.prefix)),
    "”. ",
    button("Let it go", () => side.force(""), { class: "quiet" }),
  );
}

/** A text that goes on token by token; returns the nodes, and a function that runs the stream. */
export function completion(side) {
  const tokens = [];
  const prompt = side.input[0] ?? "";
  const text = el(
    "p",
    { class: "tokens continued", dir: "auto", "aria-live": "off" },
    el(
      "span",
      { class: "prompt" },
      prompt.split("\n").flatMap((line, i) => [i ? "\n" : "", ...shown(line)]),
    ),
  );
  const facts = el("p", { class: "facts" }, " ");
  const stop = button("Stop", () => side.stop(), { class: "quiet" });
  const again = button("Another", () => side.reseed(), { class: "quiet", disabled: true });
  const nodes = [
    side.prefix ? forcedNote(side) : null,
    text,
    facts,
    el("p", { class: "acts", "data-no-export": true }, stop, again),
  ];
  let body = null;
  const redraw = () => {
    const shift = side.prefix ? 1 : 0; // the forced beginning stands as one token
    const look = (index) =>
      side.look(index === null ? null : "target", index === null ? null : index - shift);
    const drawn = tokenText(tokens, {
      pick: (prefix) => side.force(prefix),
      look,
      load: (i) => alternativesOf(side, prompt, tokens, i),
      forced: side.prefix,
      kind: side.kind("target"),
    });
    side.onLook((kind, index) => drawn.light(kind === "target" ? index + shift : null));
    const span = el("span", { class: "run-on" });
    span.append(...drawn.childNodes);
    body ? body.replaceWith(span) : text.append(span);
    body = span;
  };
  const run = async (stream) => {
    let written = "";
    if (side.prefix) {
      written = side.prefix;
      tokens.push(forcedToken(side.prefix));
    }
    let drawn = 0;
    for await (const event of stream) {
      if (event.done) break;
      written += event.token;
      tokens.push({
        text: event.token,
        log_p: event.log_p,
        prefix: written,
        alternatives: event.alternatives ?? [],
      });
      if (performance.now() - drawn > 40) {
        redraw();
        drawn = performance.now();
      }
    }
    redraw();
    const said = tokens.slice(side.prefix ? 1 : 0);
    const total = said.reduce((sum, token) => sum + token.log_p, 0);
    if (said.length)
      facts.textContent = `${said.length} tokens · log p ${number(total)} · perplexity ${number(Math.exp(-total / said.length))}`;
    stop.disabled = true;
    again.disabled = false;
    return { text: written, tokens: said, score: total };
  };
  return { nodes: nodes.filter(Boolean), run, redraw };
}

/** What else could have stood at a place of a completion: the model reads the text up to there. */
async function alternativesOf(side, prompt, tokens, i) {
  const view = await side.inspect("tokens", { complete: false }, [prompt + tokens[i].prefix]);
  const read = view.tokens.map(asToken);
  const last = read.at(-2) ?? read.at(-1); // the very last is the end of the line
  const alternatives = last.alternatives.map((one) => {
    const goesOn =
      typeof one.prefix === "string" && one.prefix.startsWith(prompt) && !END.test(one.text);
    return { ...one, prefix: goesOn ? one.prefix.slice(prompt.length) : null };
  });
  return { ...tokens[i], text: last.text, alternatives };
}

// Where an input is written, or dropped: a text, a picture, a sound or a table for each of a run's sources.

import { button, el } from "./dom.js";
import { readPicture, readSound } from "./media.js";

const LABELS = {
  text: "Text",
  picture: "Picture",
  sound: "Sound",
  numbers: "Numbers",
  label: "Label",
};
const HINTS = {
  translate: "Write something to be translated …",
  classify: "Write something to be judged …",
  tag: "Write a sentence to be tagged …",
  language: "Begin a text …",
  forecast: "Paste a table: a row of names, then a row for each step …",
};

/**
 * A table of numbers as a forecast takes it: its last rows in JSON, one text for all series or one for each.
 * Columns are found by their names in the first row, or else by their order; dates are left out.
 */
export function windowsOf(text, { names, lookback, joint }) {
  if (/^\s*[[{]/.test(text)) return [text];
  const lines = text.trim().split(/\r?\n/);
  const rows = lines.map((line) => line.split(/[,;\t]/).map((cell) => cell.trim()));
  const isNumber = (cell) => cell === undefined || cell === "" || Number.isFinite(Number(cell));
  const header = names.some((name) => rows[0].includes(name)) || !rows[0].some(isNumber);
  const body = rows.slice(header ? 1 : 0).slice(-lookback);
  const numeric = rows[0].map((_, i) => i).filter((i) => body.every((row) => isNumber(row[i])));
  const place = (name, i) =>
    header && rows[0].includes(name) ? rows[0].indexOf(name) : numeric[i];
  const column = (k) => body.map((row) => (row[k] ? Number(row[k]) : null));
  const known = names.map((name, i) => [name, place(name, i)]).filter(([, k]) => k !== undefined);
  const columns = known.map(([, k]) => column(k));
  if (joint) return [JSON.stringify({ past: body.map((_, i) => columns.map((one) => one[i])) })];
  return known.map(([series], i) => JSON.stringify({ past: columns[i].map((x) => [x]), series }));
}

/** The fields of a side; `change()` is called when `side.input` has changed. */
export function inputFields(run, side, change) {
  const kinds = run.sources.length ? run.sources : ["text"];
  const columns = kinds.length;
  const names = run.columns ?? [];
  const fields = Array.from({ length: columns }, (_, i) => {
    const kind = kinds[i];
    const label =
      columns > 1
        ? /^\d+$/.test(names[i] ?? "1")
          ? `${LABELS[kind] ?? kind} ${i + 1}`
          : names[i]
        : (LABELS[kind] ?? kind);
    if (kind === "picture" || kind === "sound") return mediaField(kind, label, side, i, change);
    return textField(run, label, side, i, change, kind === "numbers");
  });
  return el("div", { class: "inputs" }, fields);
}

function textField(run, label, side, i, change, table) {
  const hint = run.vectors
    ? "A word …"
    : run.fills
      ? "Write a sentence with <mask> where a word is missing …"
      : (HINTS[run.task] ?? "Write something …");
  const fit = () => {
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, table ? 170 : 420)}px`;
  };
  const box = el("textarea", {
    rows: table ? 6 : 1,
    dir: "auto",
    spellcheck: "false",
    autocomplete: "off",
    placeholder: hint,
    "aria-label": `input: ${label}`,
    class: table ? "table" : "",
    value: side.input[i] ?? "",
    on: {
      input: () => {
        side.input[i] = box.value;
        fit();
        change();
      },
    },
  });
  requestAnimationFrame(fit);
  const pick = el("input", {
    type: "file",
    class: "sr",
    accept: ".csv,.tsv,.txt",
    "aria-label": "a file with a table",
    on: {
      change: async () => {
        if (!pick.files[0]) return;
        box.value = side.input[i] = await pick.files[0].text();
        fit();
        change();
      },
    },
  });
  return el(
    "div",
    { class: "source" },
    box,
    table
      ? el("p", { class: "hint" }, el("label", { class: "file" }, "or choose a file", pick))
      : null,
  );
}

function mediaField(kind, label, side, i, change) {
  const status = el("p", { class: "hint" });
  const stage = el("div", { class: "stage" });
  const show = () => {
    const url = side.input[i];
    if (!url)
      return stage.replaceChildren(
        el(
          "p",
          { class: "empty" },
          kind === "picture"
            ? "Drop a picture here, paste one, or choose a file."
            : "Drop a recording here, or choose a file.",
        ),
      );
    if (!/^data:(image|audio)\//.test(url))
      return stage.replaceChildren(
        el("p", { class: "problem" }, "The link holds no picture or sound."),
      );
    stage.replaceChildren(
      kind === "picture"
        ? el("img", { src: url, alt: "the given picture" })
        : el("audio", { src: url, controls: true }),
    );
  };
  const take = async (file) => {
    if (!file) return;
    try {
      side.input[i] = await (kind === "picture" ? readPicture : readSound)(file);
      status.textContent = "";
      show();
      change();
    } catch (error) {
      status.textContent = error.message;
    }
  };
  const pick = el("input", {
    type: "file",
    class: "sr",
    accept: kind === "picture" ? "image/*" : "audio/*",
    on: { change: () => take(pick.files[0]) },
  });
  show();
  return el(
    "div",
    {
      class: `source drop ${kind}`,
      tabindex: 0,
      role: "group",
      "aria-label": `input: ${label}`,
      on: {
        dragover: (event) => event.preventDefault(),
        drop: (event) => {
          event.preventDefault();
          take(event.dataTransfer.files[0]);
        },
        paste: (event) => take(event.clipboardData.files[0]),
      },
    },
    stage,
    el(
      "p",
      { class: "hint" },
      el("label", { class: "file" }, "choose a file", pick),
      side.input[i]
        ? button(
            "remove",
            () => {
              side.input[i] = "";
              show();
              change();
            },
            { class: "quiet" },
          )
        : null,
    ),
    status,
  );
}

// Tokens as the interface: a text whose every token can be asked what else it might have been.

import {
  announce,
  button,
  el,
  number,
  percent,
  piece,
  pressable,
  shown,
  spelled,
  tokenName,
} from "./dom.js";

export const END = /^<\/s>$|^<eos>$|^\[SEP\]$|^<\|endoftext\|>$/;

/** How much a token surprised, from 0 to 1: 0 at certainty, 1 at one in a thousand. */
export const surprise = (logP) => Math.max(0, Math.min(1, -logP / Math.log(1000)));

/** The text that a token, or an alternative to it, adds, its blank with it. */
export function textOf(tokens, i, token = tokens[i], kind = "") {
  if (typeof token.prefix === "string") {
    let before = "";
    for (let k = i - 1; k >= 0 && !before; k--) before = tokens[k].prefix ?? "";
    if (token.prefix.startsWith(before) && token.prefix !== before)
      return token.prefix.slice(before.length);
  }
  const { text, before } = piece(token.text, kind);
  return (before && i > 0 ? " " : "") + text;
}

const isEnd = (token) => token.prefix === null || END.test(token.text);

/** What has to be forced so that the answer goes on with this alternative; null for the end, or where it is not known. */
const forcedBy = (alternative) => (isEnd(alternative) ? null : (alternative.prefix ?? null));

/**
 * A text of tokens. `pick(prefix)` is called when an alternative is chosen; `look(index)` when the pointer is on one;
 * `load(index)` gives alternatives where a token has none yet.
 */
export function tokenText(
  tokens,
  { pick = null, look = null, load = null, tint = true, forced = "", kind = "" } = {},
) {
  const node = el("p", { class: "tokens", dir: "auto" });
  const parts = [];
  let length = 0;
  tokens.forEach((token, i) => {
    const ends = isEnd(token);
    const text = ends ? "" : textOf(tokens, i, token, kind);
    length += text.length;
    const [, blank, word] = /^( *)([\s\S]*)$/.exec(text);
    if (blank && word) node.append(blank);
    const part = pressable(
      "span",
      {
        class: `token${ends ? " end" : ""}${forced && length <= forced.length ? " forced" : ""}`,
        style: tint ? { "--surprise": surprise(token.log_p).toFixed(3) } : {},
        "aria-label": `${ends ? "end" : tokenName(text)}, ${percent(Math.exp(token.log_p))}`,
        on: {
          pointerenter: () => look?.(i),
          pointerleave: () => look?.(null),
          focus: () => look?.(i),
          blur: () => look?.(null),
          keydown: (event) => {
            const next = parts[i + ({ ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? NaN)];
            if (!next) return;
            event.preventDefault();
            part.tabIndex = -1;
            next.tabIndex = 0;
            next.focus();
          },
        },
      },
      () => openAlternatives(part, tokens, i, { pick, load, kind }),
      ends ? "∎" : word ? written(word) : blank || el("span", { class: "unseen" }, "∅"),
    );
    part.tabIndex = i === 0 ? 0 : -1;
    parts.push(part);
    node.append(part);
  });
  node.light = (index) => parts.forEach((part, i) => part.classList.toggle("lit", i === index));
  return node;
}

/** A token's text; a line that ends is marked, and ends. */
const written = (text) =>
  text
    .split(/(\n)/)
    .flatMap((part) =>
      part === "\n" ? [el("span", { class: "newline" }, "↵"), el("br")] : shown(part),
    );

let open = null;

export function closePopover() {
  if (!open) return;
  const { box, anchor, outside } = open;
  open = null;
  document.removeEventListener("pointerdown", outside, true);
  box.remove();
  anchor.removeAttribute("aria-expanded");
  if (anchor.isConnected) anchor.focus({ preventScroll: true });
}

/** A small box below an element, closed by Escape or a press elsewhere. */
export function popover(anchor, label, ...children) {
  closePopover();
  const box = el(
    "div",
    {
      class: "popover",
      role: "dialog",
      "aria-label": label,
      on: { keydown: (event) => event.key === "Escape" && closePopover() },
    },
    ...children,
  );
  document.body.append(box);
  const at = anchor.getBoundingClientRect();
  const wide = box.offsetWidth;
  const below = at.bottom + 6 + box.offsetHeight < innerHeight || at.top < box.offsetHeight + 12;
  box.style.left = `${Math.max(8, Math.min(at.left, innerWidth - wide - 8)) + scrollX}px`;
  box.style.top = `${(below ? at.bottom + 6 : at.top - box.offsetHeight - 6) + scrollY}px`;
  const outside = (event) => !box.contains(event.target) && closePopover();
  document.addEventListener("pointerdown", outside, true);
  anchor.setAttribute("aria-expanded", "true");
  open = { box, anchor, outside };
  return box;
}

/** Rows of names with bars: alternatives, labels, neighbours. */
export function bars(rows, { pick = null, format = percent, label = "" } = {}) {
  const most = Math.max(1e-12, ...rows.map((row) => row.value));
  const list = el("ul", { class: "bars", "aria-label": label });
  const buttons = [];
  rows.forEach((row, i) => {
    const parts = [
      el("span", { class: "name", dir: "auto" }, shown(row.text)),
      el(
        "span",
        { class: "bar", "aria-hidden": "true" },
        el("span", { style: { width: `${(100 * Math.max(0, row.value)) / (row.of ?? most)}%` } }),
      ),
      el("span", { class: "value" }, format(row.value)),
    ];
    if (!pick || row.fixed) {
      list.append(
        el("li", { class: row.chosen ? "chosen" : "" }, el("span", { class: "row" }, parts)),
      );
      return;
    }
    const one = el(
      "button",
      {
        type: "button",
        class: "row",
        "aria-current": row.chosen ? "true" : null,
        on: {
          click: () => pick(row),
          keydown: (event) => {
            const next =
              buttons[buttons.indexOf(one) + ({ ArrowDown: 1, ArrowUp: -1 }[event.key] ?? NaN)];
            if (!next) return;
            event.preventDefault();
            next.focus();
          },
        },
      },
      parts,
    );
    buttons.push(one);
    list.append(el("li", { class: row.chosen ? "chosen" : "" }, one));
  });
  list.buttons = buttons;
  return list;
}

/** The text of the tokens before one. */
const joined = (tokens, i) =>
  tokens
    .slice(0, i)
    .map((_, k) => textOf(tokens, k))
    .join("")
    .trimStart();

async function openAlternatives(anchor, tokens, i, { pick, load, kind }) {
  if (open?.anchor === anchor) return closePopover();
  let token = tokens[i];
  if (!token.alternatives?.length && load) {
    popover(anchor, "alternatives", el("p", { class: "hint" }, "asking …"));
    try {
      token = await load(i);
    } catch (error) {
      popover(anchor, "alternatives", el("p", { class: "problem" }, error.message));
      return;
    }
  }
  const rows = (token.alternatives ?? []).map((one) => {
    const forced = forcedBy(one);
    return {
      text: isEnd(one)
        ? "end of the answer"
        : textOf(tokens, i, one, kind).trim() || tokenName(one.text, kind),
      value: Math.exp(one.log_p),
      of: 1,
      chosen: one.text === token.text,
      fixed: forced === null,
      forced,
    };
  });
  const list = bars(rows, {
    label: "alternatives",
    pick:
      pick &&
      ((row) => {
        closePopover();
        announce(`The answer now has to begin with ${spelled(row.forced)}`);
        pick(row.forced);
      }),
  });
  const hint = rows.length
    ? pick
      ? "Pick one: the answer is decoded anew from here."
      : "The likeliest at this place."
    : "Nothing is known about other tokens here.";
  const name = isEnd(token)
    ? "end"
    : spelled(textOf(tokens, i, tokens[i], kind).trim()) || tokenName(token.text, kind);
  const box = popover(
    anchor,
    `alternatives to ${name}`,
    el(
      "p",
      { class: "facts" },
      el("b", {}, name),
      ` ${percent(Math.exp(token.log_p))} · log p ${number(token.log_p)} · ${number(-token.log_p / Math.LN2, 1)} bits`,
    ),
    list,
    el("p", { class: "hint" }, hint),
    pick && i > 0
      ? button(
          "Keep what comes before, decode the rest",
          () => {
            closePopover();
            pick(tokens[i - 1].prefix ?? joined(tokens, i)); // a prefix after a prompt has its blank
          },
          { class: "quiet" },
        )
      : null,
  );
  (list.buttons[0] ?? box).focus?.({ preventScroll: true });
}

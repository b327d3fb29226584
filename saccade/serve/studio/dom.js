// Elements by hand. Text only ever enters the page as text nodes: what a model says is never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on")
      for (const [event, react] of Object.entries(value)) node.addEventListener(event, react);
    else if (name === "style")
      for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

/** An HTML element; strings among the children are text. */
export const el = (tag, props = {}, ...children) =>
  fill(document.createElement(tag), props, children);

/** An SVG element. */
export const svg = (tag, props = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), props, children);

/** Say something to a screen reader. */
export function announce(text) {
  document.getElementById("said").textContent = text;
}

// ---- characters that cannot be seen

const NAMES = {
  0x00: "NUL",
  0x09: "⇥",
  0x0a: "↵",
  0x0d: "␍",
  0x1b: "ESC",
  0x7f: "DEL",
  0xa0: "NBSP",
  0xad: "SHY",
  0x61c: "ALM",
  0x200b: "ZWSP",
  0x200c: "ZWNJ",
  0x200d: "ZWJ",
  0x200e: "LRM",
  0x200f: "RLM",
  0x2028: "LSEP",
  0x2029: "PSEP",
  0x202a: "LRE",
  0x202b: "RLE",
  0x202c: "PDF",
  0x202d: "LRO",
  0x202e: "RLO",
  0x2060: "WJ",
  0x2066: "LRI",
  0x2067: "RLI",
  0x2068: "FSI",
  0x2069: "PDI",
  0xfeff: "BOM",
};
const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u00a0]/u;
const JOINED = /[\p{Extended_Pictographic}\ufe0f\u{1f3fb}-\u{1f3ff}]$/u; // after which ZWJ and VS16 are part of an emoji

/** The name in place of a character that cannot be seen, or "" for one that can. */
export function nameOf(char, before = "") {
  if (!UNSEEN.test(char)) return "";
  const code = char.codePointAt(0);
  if ((code === 0x200d || code === 0xfe0f) && JOINED.test(before)) return "";
  return NAMES[code] ?? `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A text as nodes: control, bidirectional and zero-width characters stand as their names. */
export function shown(text, breaks = false) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
  };
  for (const char of text) {
    const name = nameOf(char, plain);
    if (!name) {
      plain += char;
      continue;
    }
    flush();
    nodes.push(
      el(
        "span",
        {
          class: "unseen",
          title: `U+${char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`,
        },
        name,
      ),
    );
    if (char === "\n" && breaks) nodes.push(el("br"));
  }
  flush();
  return nodes;
}

/** The same as a plain string, for labels that are drawn and for screen readers. */
export function spelled(text) {
  let said = "";
  for (const char of text) said += nameOf(char, said) || char;
  return said;
}

/**
 * A piece of a vocabulary, by the kind of its tokenizer: its text, and whether a blank is before and after it.
 * A word is cut as in low est</w> (bpe), ▁low est (unigram), " low" "est" (bytes), low ##est or Ġlow est (imported).
 */
export function piece(text, kind = "") {
  if (/^<\/?[\w|]+>$/.test(text) && kind) return { text, before: true, after: true }; // a special token
  if (kind === "bpe")
    return text.endsWith("</w>")
      ? { text: text.slice(0, -4), before: false, after: true }
      : { text, before: false, after: false };
  if (kind === "unigram")
    return text.startsWith("▁")
      ? { text: text.slice(1), before: true, after: false }
      : { text, before: false, after: false };
  if (kind === "bytes")
    return text.startsWith(" ")
      ? { text: text.slice(1), before: true, after: false }
      : { text, before: false, after: false };
  if (kind === "imported")
    return /^[▁Ġ]/u.test(text)
      ? { text: text.slice(1), before: true, after: false }
      : text.startsWith("##")
        ? { text: text.slice(2), before: false, after: false }
        : { text, before: false, after: false };
  return { text, before: kind === "word", after: kind === "word" };
}

/** A token for a label: what cannot be seen stands as its name. */
export function tokenName(text, kind = "") {
  const name = spelled(piece(text, kind).text);
  return name.trim() ? name : "␣";
}

/** Tokens as one text: for each [its name, whether a blank is before it]. */
export function joined(tokens, kind) {
  let open = false; // whether the last one leaves no blank
  return tokens.map((token, i) => {
    const { before, after } = piece(token, kind);
    const blank = i > 0 && (before || !open);
    open = !after;
    return [tokenName(token, kind), blank];
  });
}

/** Cut a label for a place that is narrow. */
export const cut = (text, most = 16) => {
  const chars = [...text];
  return chars.length > most ? `${chars.slice(0, most - 1).join("")}…` : text;
};

// ---- numbers

export function percent(p) {
  const x = 100 * p;
  return `${x >= 99.95 ? "100" : x >= 10 ? x.toFixed(0) : x >= 1 ? x.toFixed(1) : x >= 0.01 ? x.toFixed(2) : "<0.01"} %`;
}

export function number(x, digits = 2) {
  if (x === null || x === undefined || !Number.isFinite(x)) return "–";
  const size = Math.abs(x);
  const text =
    size >= 1e5 || (size > 0 && size < 1e-3)
      ? x.toExponential(1)
      : x.toFixed(size >= 100 ? Math.min(digits, 1) : digits);
  return text.replace("-", "−");
}

export function count(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)} billion`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)} million`;
  return n.toLocaleString("en");
}

/** Call at most once in so many milliseconds, the last time. */
export function debounce(react, wait) {
  let timer = 0;
  const later = (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => react(...args), wait);
  };
  later.now = (...args) => {
    clearTimeout(timer);
    react(...args);
  };
  return later;
}

// ---- small controls

/** A label with a control inside. */
export const field = (label, control, title = "") =>
  el("label", { class: "field", title: title || null }, el("span", {}, label), control);

export function choice(options, value, react, label) {
  const box = el("select", { "aria-label": label ?? null, on: { change: () => react(box.value) } });
  for (const one of options) {
    const [key, text] = Array.isArray(one) ? one : [one, one];
    box.append(el("option", { value: key, selected: String(key) === String(value) }, text));
  }
  return box;
}

/** Buttons of which one is chosen, as of a radio group. */
export function segments(options, value, react, label) {
  const name = `segments-${(segments.count = (segments.count ?? 0) + 1)}`;
  const group = el("div", { class: "segments", role: "radiogroup", "aria-label": label });
  for (const [key, text] of options) {
    const radio = el("input", {
      type: "radio",
      name,
      value: key,
      checked: key === value,
      on: { change: () => react(key) },
    });
    group.append(el("label", {}, radio, el("span", {}, text)));
  }
  return group;
}

/** A part of a running text that can be pressed: unlike a button, it breaks over lines as words do. */
export function pressable(tag, props, react, ...children) {
  const press = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    react(event);
  };
  const node = el(
    tag,
    { role: "button", tabindex: 0, ...props, on: { click: react, keydown: press } },
    ...children,
  );
  for (const [name, more] of Object.entries(props.on ?? {})) node.addEventListener(name, more);
  return node;
}

export const button = (text, react, props = {}) =>
  el("button", { type: "button", ...props, on: { click: react, ...(props.on ?? {}) } }, text);

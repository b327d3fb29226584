// What is looked at, as a link: the fragment of the address holds every choice, readable and in order.
//
// #run=en_fr&in=Good+morning.&view=attention&o.layer=2&o.head=1&set.width=8, and for a second side the same keys
// with "b." before them. What is not there has its default.

const PREFIXES = ["", "b."];
const LIMIT = 1_500_000; // characters of a fragment that a browser still takes; a long sound has more

const MAX_COLUMNS = 16;
const table = () => Object.create(null);

export const emptySide = (run = "") => ({
  run,
  input: [],
  view: "",
  settings: table(),
  nbest: 1,
  prefix: "",
  options: table(),
});

/** A value as text that `parse` reads back: what is not a string stands as JSON. */
const written = (value) =>
  typeof value === "string" && !/^([-\d[{"]|true$|false$|null$)/.test(value)
    ? value
    : JSON.stringify(value);
const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
};

export function toFragment(state) {
  const params = new URLSearchParams();
  state.sides.forEach((side, i) => {
    const at = PREFIXES[i];
    params.set(`${at}run`, side.run);
    if (i === 0 || !state.linked)
      side.input.forEach((cell, k) => params.set(`${at}in${k ? k + 1 : ""}`, cell));
    if (side.view) params.set(`${at}view`, side.view);
    if (side.nbest > 1) params.set(`${at}nbest`, side.nbest);
    if (side.prefix) params.set(`${at}prefix`, side.prefix);
    for (const [group, values] of [
      ["set", side.settings],
      ["o", side.options],
    ])
      for (const [key, value] of Object.entries(values))
        if (value !== null && value !== undefined)
          params.set(`${at}${group}.${key}`, written(value));
  });
  if (state.sides.length > 1 && state.linked) params.set("linked", "1");
  const text = params.toString();
  return text.length <= LIMIT ? text : null;
}

export function fromFragment(fragment) {
  const params = new URLSearchParams(fragment.replace(/^#/, ""));
  const sides = [];
  for (const at of PREFIXES) {
    if (!params.has(`${at}run`)) continue;
    const side = emptySide(params.get(`${at}run`));
    for (const [name, text] of params) {
      if (!name.startsWith(at)) continue;
      const key = name.slice(at.length);
      if (/^in\d{0,2}$/.test(key))
        side.input[Math.min(Number(key.slice(2)) || 1, MAX_COLUMNS) - 1] = text;
      else if (key.startsWith("set.")) side.settings[key.slice(4)] = parsed(text);
      else if (key.startsWith("o.")) side.options[key.slice(2)] = parsed(text);
      else if (key === "nbest") side.nbest = Math.max(1, Math.min(100, Number(text) || 1));
      else if (key === "view" || key === "prefix") side[key] = text;
    }
    side.input = Array.from(side.input, (cell) => cell ?? "");
    sides.push(side);
  }
  const linked = params.get("linked") === "1";
  if (linked && sides[1]) sides[1].input = [...sides[0].input];
  return { sides, linked };
}

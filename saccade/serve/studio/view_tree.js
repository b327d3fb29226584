// The tree of a beam search: prefixes are shared, time runs to the right, and what was dropped fades.

import { announce, button, el, number, percent, shown, svg, tokenName } from "./dom.js";
import { textWidth } from "./heat.js";
import { END } from "./tokens.js";

const ROW = 24;
const GAP = 26; // between a token and its continuations
const FONT = 15;
const FINISHED = 5; // answers whose paths are unfolded at first
const FATES = {
  kept: "kept in the beam",
  ended: "ended: a finished answer",
  "outside the beam": "dropped: outside the beam",
  "could not win": "dropped: it could no longer win",
  "enough had ended": "dropped: enough answers had ended",
};

async function load({ side, inspect, settings }) {
  const prefix = side.prefix && side.run.task !== "language" ? { prefix: side.prefix } : {};
  return inspect({ ...settings(), ...prefix }, side.given);
}

function draw(context, data) {
  const { body, options, remember } = context;
  const kind = context.side.kind("target");
  const nodes = data.nodes.map((node, i) => ({ ...node, id: i, children: [] }));
  const root = { id: -1, token: "", children: [], fate: "kept", score: 0 };
  for (const node of nodes)
    (node.parent === null || node.parent === undefined ? root : nodes[node.parent]).children.push(
      node,
    );
  const winners = new Set();
  for (let at = nodes[data.best]; at; at = nodes[at.parent]) winners.add(at.id);
  // a node lives if an answer that has ended is below it
  const living = (node) =>
    (node.live ??= node.fate === "ended" || node.children.map(living).some(Boolean));
  const leaves = nodes
    .filter((node) => node.fate === "ended")
    .sort((a, b) => b.score - a.score)
    .slice(0, FINISHED);
  const main = new Set(winners); // at first, the paths of the best answers
  for (const leaf of leaves) for (let at = leaf; at; at = nodes[at.parent]) main.add(at.id);
  const folded = new Set(options.folded ?? []);
  let pruned = options.pruned ?? nodes.length <= 60;
  const opened = new Set(options.opened ?? []); // nodes whose dropped children are shown though others are not
  const board = el("div", { class: "board", role: "tree", "aria-label": "beam tree" });
  const said = el("p", { class: "readout" }, " ");
  const toggle = el(
    "label",
    { class: "check" },
    el("input", {
      type: "checkbox",
      checked: pruned,
      on: {
        change: (event) => {
          pruned = event.target.checked;
          remember({ pruned });
          layOut();
        },
      },
    }),
    "show all that was looked at",
  );
  const fates = nodes.reduce(
    (sum, node) => ({ ...sum, [node.fate]: (sum[node.fate] ?? 0) + 1 }),
    {},
  );
  const summary = Object.entries(fates)
    .map(([fate, n]) => `${n} ${fate}`)
    .join(" · ");
  body.append(
    el(
      "div",
      { class: "controls", "data-no-export": true },
      toggle,
      button(
        "Fold all but the answer",
        () => {
          for (const node of nodes)
            if (!winners.has(node.id) && node.children.length) folded.add(node.id);
          remember({ folded: [...folded] });
          layOut();
        },
        { class: "quiet" },
      ),
      button(
        "Unfold all",
        () => {
          folded.clear();
          remember({ folded: null });
          layOut();
        },
        { class: "quiet" },
      ),
    ),
    el("div", { class: "scroll" }, board),
    said,
    el("p", { class: "facts" }, summary),
  );

  const describe = (node) =>
    `${END.test(node.token) ? "end" : tokenName(node.token, kind)} · log p ${number(node.score)}${node.parent === null ? "" : ` · this step ${percent(Math.exp(Math.min(0, node.score - (nodes[node.parent]?.score ?? 0))))}`} · ${FATES[node.fate] ?? node.fate}${node.why ? `: ${node.why}` : ""}`;

  function layOut(focus = null) {
    const placed = [];
    const edges = [];
    let row = 0;
    let right = 0;
    const visit = (node, x, depth) => {
      const text = node.id < 0 ? "" : END.test(node.token) ? "∎" : tokenName(node.token, kind);
      const own = node.id < 0 ? 0 : textWidth(text, FONT, "serif") + 10;
      const shownChildren = folded.has(node.id)
        ? []
        : node.children.filter((child) => pruned || main.has(child.id) || opened.has(node.id));
      const hidden = node.children.length - shownChildren.length;
      shownChildren.sort((a, b) => winners.has(b.id) - winners.has(a.id) || b.score - a.score);
      const wide = own + (hidden && node.id >= 0 ? textWidth(`+${hidden}`, 11) + 16 : 0);
      const at = { node, text, x, depth, wide, hidden, y: 0, open: shownChildren.length > 0 };
      placed.push(at);
      right = Math.max(right, x + wide);
      if (!shownChildren.length) at.y = row++ * ROW;
      else {
        const kids = shownChildren.map((child) =>
          visit(child, x + (node.id < 0 ? 12 : wide + GAP), depth + 1),
        );
        at.y = kids[0].y; // the best child continues the line of text
        for (const kid of kids) edges.push([at, kid]);
      }
      return at;
    };
    visit(root, 0, 0);
    const height = row * ROW + 4;
    const strokes = svg(
      "svg",
      { width: right, height, viewBox: `0 0 ${right} ${height}`, "aria-hidden": "true" },
      edges.map(([from, to]) => {
        const [x0, y0, x1, y1] = [from.x + from.wide, from.y + ROW / 2, to.x, to.y + ROW / 2];
        const middle = x1 - (from.node.id < 0 ? 8 : GAP / 2);
        const d =
          y0 === y1
            ? `M${x0} ${y0}H${x1}`
            : `M${x0} ${y0}H${middle - 6}Q${middle} ${y0} ${middle} ${y0 + 6}V${y1 - 6}Q${middle} ${y1} ${middle + 6} ${y1}H${x1}`;
        return svg("path", {
          d,
          class: winners.has(to.node.id) ? "won" : living(to.node) ? "live" : "dead",
        });
      }),
    );
    const labels = placed.filter((at) => at.node.id >= 0).map((at) => label(at));
    labels.forEach((one, i) => (one.tabIndex = i === 0 ? 0 : -1));
    board.style.width = `${right}px`;
    board.style.height = `${height}px`;
    board.replaceChildren(strokes, ...labels);
    if (focus !== null) labels.find((one) => Number(one.dataset.id) === focus)?.focus();
  }

  function label(at) {
    const { node } = at;
    const state = winners.has(node.id)
      ? "won"
      : living(node)
        ? node.fate === "ended"
          ? "ended"
          : "live"
        : "dead";
    const fold = () => {
      if (!node.children.length) return;
      if (folded.has(node.id)) folded.delete(node.id);
      else if (at.hidden) opened.add(node.id);
      else folded.add(node.id);
      remember({
        folded: folded.size ? [...folded] : null,
        opened: opened.size ? [...opened] : null,
      });
      layOut(node.id);
    };
    const tell = () => {
      said.textContent = describe(node);
    };
    return el(
      "div",
      {
        class: `node ${state}`,
        role: "treeitem",
        "data-id": node.id,
        "aria-level": at.depth,
        "aria-expanded": node.children.length ? String(at.open && !at.hidden) : null,
        "aria-label": describe(node),
        style: {
          left: `${at.x}px`,
          top: `${at.y}px`,
          cursor: node.children.length ? "pointer" : "default",
        },
        on: {
          click: fold,
          pointerenter: tell,
          focus: tell,
          keydown: (event) => {
            if (event.key === "Enter" || event.key === " ") {
              event.preventDefault();
              return fold();
            }
            const all = [...board.querySelectorAll(".node")];
            const here = all.indexOf(event.currentTarget);
            const byId = (id) => all.find((one) => Number(one.dataset.id) === id);
            const next = {
              ArrowDown: all[here + 1],
              ArrowUp: all[here - 1],
              ArrowLeft: byId(node.parent ?? -1),
              ArrowRight: node.children.map((child) => byId(child.id)).find(Boolean),
            }[event.key];
            if (!next) return undefined;
            event.preventDefault();
            next.tabIndex = 0;
            next.focus();
            return announce(said.textContent);
          },
        },
      },
      shown(at.text),
      at.hidden ? el("span", { class: "chip", "aria-hidden": "true" }, `+${at.hidden}`) : null,
    );
  }

  layOut();
}

export const view = { load, draw };

// Views of a whole run: how it learned, while it learns; and where it does worst.

import * as api from "./api.js";
import { lineChart } from "./chart.js";
import { button, choice, el, field, number, shown } from "./dom.js";

const EVERY = 3000; // milliseconds between two looks at a run in training
const POINTS = 600; // of a curve, at most

function thinned(points) {
  if (points.length <= POINTS) return points;
  const size = points.length / POINTS;
  return Array.from({ length: POINTS }, (_, i) => {
    const some = points.slice(
      Math.floor(i * size),
      Math.max(Math.floor(i * size) + 1, Math.floor((i + 1) * size)),
    );
    return [some.at(-1)[0], some.reduce((sum, [, y]) => sum + y, 0) / some.length];
  });
}

/** The runs of an answer, whatever its form: a list of them, or one alone. */
const listed = (data) => data.runs ?? [data];

export const curves = {
  async load({ side, signal }) {
    const found = await api.curves(side.run.name, signal);
    return { kind: "curves", runs: listed(found).map((run) => ({ name: side.run.name, ...run })) };
  },

  draw(context, data) {
    const { body, side, width, signal } = context;
    const [run] = data.runs;
    const pairs = (values) =>
      thinned(
        (run.steps ?? [])
          .map((step, i) => [step, values?.[i]])
          .filter(([, y]) => Number.isFinite(y)),
      );
    const dev = run.dev ?? [];
    const scores = [...new Set(dev.flatMap((one) => Object.keys(one.scores)))];
    const devOf = (name) =>
      dev
        .filter((one) => Number.isFinite(one.scores[name]))
        .map((one) => [one.step, one.scores[name]]);
    const columns = width() > 820 ? 2 : 1;
    const wide = columns === 2 ? (width() - 28) / 2 : width();
    const charts = [
      [
        "Loss",
        [
          { name: "training", kind: "past", points: pairs(run.loss) },
          { name: "dev", points: devOf("loss"), dots: true },
        ],
      ],
    ];
    for (const name of scores)
      if (name !== "loss")
        charts.push([name.replaceAll("_", " "), [{ points: devOf(name), dots: true }]]);
    if (run.rate?.length)
      charts.push(["Learning rate", [{ kind: "past", points: pairs(run.rate) }]]);
    const last = run.steps?.at(-1);
    body.append(
      el(
        "p",
        { class: "facts" },
        (run.training ?? side.run.training) ? el("b", { class: "now" }, "in training · ") : "",
        `${last ?? 0} steps`,
        dev.length
          ? ` · dev: ${Object.entries(dev.at(-1).scores)
              .map(([name, value]) => `${name} ${number(value)}`)
              .join(", ")}`
          : "",
      ),
      el(
        "div",
        { class: `charts n${columns}` },
        charts
          .filter(([, lines]) => lines.some((line) => line.points.length))
          .map(([title, lines]) =>
            el(
              "div",
              {},
              el("h3", {}, title),
              lineChart({
                lines: lines.filter((line) => line.points.length),
                width: wide,
                label: `${title} by step`,
                x: "step",
              }),
            ),
          ),
      ),
    );
    if (!run.steps?.length && !dev.length)
      body.append(el("p", { class: "hint" }, "This run has kept no record of its training."));
    if (!(run.training ?? side.run.training)) return;
    clearTimeout(side.polling);
    side.polling = setTimeout(async () => {
      if (signal.aborted || !body.isConnected) return;
      try {
        context.data = await curves.load(context);
        body.replaceChildren();
        curves.draw(context, context.data);
      } catch {
        // the next look may succeed; the curve stays as it is
      }
    }, EVERY);
  },
};

const textOf = (cell) => (Array.isArray(cell) ? cell.join("\t") : String(cell ?? ""));

export const worst = {
  load: ({ side, signal, options }) => api.worst(side.run.name, options.n ?? 20, signal),

  draw({ body, side, options, remember, again }, data) {
    const rows = data.examples ?? [];
    body.append(
      el(
        "div",
        { class: "controls", "data-no-export": true },
        field(
          "Examples",
          choice(
            [10, 20, 50, 100],
            options.n ?? 20,
            (value) => {
              remember({ n: Number(value) });
              again();
            },
            "how many",
          ),
        ),
      ),
    );
    if (!rows.length)
      return body.append(el("p", { class: "hint" }, "There are no dev examples to show."));
    const media = (text) => /^data:(image|audio)\//.test(text);
    const cell = (text, className) =>
      el(
        "td",
        { class: className, dir: "auto" },
        media(text)
          ? text.startsWith("data:image/")
            ? el("img", { src: text, alt: "" })
            : "a sound"
          : shown(text),
      );
    body.append(
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "worst" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              ["Input", "Right answer", "What the run says", "log p a token", ""].map((name, i) =>
                el("th", { scope: "col", class: i === 3 ? "value" : "" }, name),
              ),
            ),
          ),
          el(
            "tbody",
            {},
            rows.map((row) =>
              el(
                "tr",
                {},
                cell(textOf(row.source), "given"),
                cell(textOf(row.target), ""),
                cell(textOf(row.said), "said"),
                el("td", { class: "value" }, number(row.per_token)),
                el(
                  "td",
                  { "data-no-export": true },
                  button(
                    "Try",
                    () => {
                      side.state.input =
                        Array.isArray(row.source) && side.fields.children.length > 1
                          ? row.source.map(String)
                          : [
                              Array.isArray(row.source)
                                ? row.source.join(side.run.task === "tag" ? " " : "\t")
                                : String(row.source),
                            ];
                      side.state.prefix = "";
                      side.app.remember();
                      side.app.mirror(side);
                      side.reload();
                      side.node.scrollIntoView({ block: "start" });
                    },
                    { class: "quiet", "aria-label": "try this input" },
                  ),
                ),
              ),
            ),
          ),
        ),
      ),
    );
    return undefined;
  },
};

// What is read is not text: the gaze over a picture, speech under its waveform, series with their intervals.

import { ApiError } from "./api.js";
import { lineChart } from "./chart.js";
import { choice, el, field, number, pressable, shown, svg, tokenName } from "./dom.js";
import { HeatMap } from "./heat.js";
import { windowsOf } from "./input.js";
import { ink, readMatrix } from "./matrix.js";

const BIG = 340; // pixels of the picture
const MANY_SERIES = 24; // forecast at once

export const path = {
  load: ({ side, inspect }) => inspect(side.target()),

  draw({ body, side, options, remember }, data) {
    const maps = data.weights.map(readMatrix);
    const given = side.input.find((cell) => /^data:image\//.test(cell ?? ""));
    const seen = data.picture?.url ?? ""; // the picture as the network reads it: cut and scaled
    const picture = /^data:image\//.test(seen) ? seen : given;
    const image = new Image();
    const stage = el("canvas", {
      class: "gaze",
      role: "img",
      "aria-label": "the picture, lit where the chosen word looked",
    });
    const words = el("p", { class: "tokens", dir: "auto" });
    const strip = el("div", { class: "frames" });
    let at = Math.min(options.word ?? 0, maps.length - 1);
    const paint = (canvas, size, map) => {
      const [w, h] = [image.naturalWidth || 1, image.naturalHeight || 1];
      const scale = size / Math.max(w, h);
      const dense = 2;
      canvas.width = Math.round(w * scale * dense);
      canvas.height = Math.round(h * scale * dense);
      canvas.style.width = `${Math.round(w * scale)}px`;
      canvas.style.height = `${Math.round(h * scale)}px`;
      const context = canvas.getContext("2d");
      context.imageSmoothingEnabled = scale < 4;
      context.drawImage(image, 0, 0, canvas.width, canvas.height);
      if (!map) return;
      const veil = document.createElement("canvas");
      veil.width = map.columns;
      veil.height = map.rows;
      const brush = veil.getContext("2d");
      const shadow = brush.createImageData(map.columns, map.rows);
      map.values.forEach((value, i) =>
        shadow.data.set([0, 0, 0, Math.round(215 * (1 - value / (map.max || 1)))], 4 * i),
      );
      brush.putImageData(shadow, 0, 0);
      context.imageSmoothingEnabled = true;
      context.imageSmoothingQuality = "high";
      context.drawImage(veil, 0, 0, canvas.width, canvas.height);
      trace(context, canvas, maps, canvas === stage ? at : -1);
    };
    const show = (index) => {
      at = index;
      paint(stage, BIG, maps[at]);
      buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(i === at)));
      frames.forEach((one, i) => one.classList.toggle("lit", i === at));
    };
    const choose = (i) => {
      remember({ word: i });
      show(i);
    };
    const buttons = data.words.map((word, i) =>
      pressable(
        "span",
        { class: "token", on: { pointerenter: () => show(i), focus: () => show(i) } },
        () => choose(i),
        shown(word),
      ),
    );
    const frames = data.words.map((word, i) =>
      el(
        "figure",
        { on: { click: () => choose(i), pointerenter: () => show(i) } },
        el("canvas", { "aria-hidden": "true" }),
        el("figcaption", {}, shown(word)),
      ),
    );
    words.append(...buttons.flatMap((one) => [one, " "]));
    strip.append(...frames);
    body.append(words, el("div", { class: "exhibit" }, stage, strip));
    image.onload = () => {
      frames.forEach((frame, i) => paint(frame.firstChild, 84, maps[i]));
      show(at);
    };
    image.onerror = () =>
      body.replaceChildren(el("p", { class: "problem" }, "The picture cannot be shown."));
    if (picture) image.src = picture;
    else body.replaceChildren(el("p", { class: "problem" }, "There is no picture to show it on."));
  },
};

/** The way of the eye: the centres of where the words up to this one looked, joined. */
function trace(context, canvas, maps, upTo) {
  if (upTo < 0) return;
  const centres = maps.slice(0, upTo + 1).map((map) => {
    let [x, y, sum] = [0, 0, 0];
    map.values.forEach((value, i) => {
      const weight = value ** 2; // nearer to where it looked most
      x += weight * ((i % map.columns) + 0.5);
      y += weight * (Math.floor(i / map.columns) + 0.5);
      sum += weight;
    });
    return [
      (x / (sum || 1) / map.columns) * canvas.width,
      (y / (sum || 1) / map.rows) * canvas.height,
    ];
  });
  context.strokeStyle = context.fillStyle = ink("accent");
  context.lineWidth = 3;
  context.globalAlpha = 0.85;
  context.beginPath();
  centres.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
  context.stroke();
  centres.forEach(([x, y], i) => {
    context.beginPath();
    context.arc(x, y, i === centres.length - 1 ? 10 : 4, 0, 7);
    context.fill();
  });
  context.globalAlpha = 1;
}

export const speech = {
  load: ({ side, inspect }) => inspect(side.target()),

  draw({ body, width, side }, data) {
    const matrix = readMatrix(data.weights);
    const length = data.length ?? matrix.columns * data.seconds;
    const heat = new HeatMap({
      label: "when each token was heard: rows are tokens, columns are time",
      square: false,
      max: 40,
    });
    body.append(heat.node);
    const names = data.tokens
      .slice(0, matrix.rows)
      .map((token) => tokenName(token, side.kind("target")));
    const wide = Math.min(width(), 1100);
    heat.draw(matrix, names, [], wide);
    const [left, w] = [heat.left, heat.across * matrix.columns];
    const wave = svg("svg", {
      class: "wave",
      width: left + w,
      height: 72,
      viewBox: `0 0 ${left + w} 72`,
      role: "img",
      "aria-label": `the sound, ${number(length, 1)} seconds`,
    });
    const parts = data.wave ?? []; // [least, most] of each part of the sound
    const top = Math.max(1e-9, ...parts.flat().map(Math.abs));
    const x = (i) => left + (i / Math.max(1, parts.length - 1)) * w;
    const edge = (k) =>
      parts.map((part, i) => `${x(i).toFixed(1)} ${(36 - (34 * part[k]) / top).toFixed(1)}`);
    if (parts.length) {
      wave.append(
        svg("path", { class: "sound", d: `M${[...edge(1), ...edge(0).reverse()].join("L")}Z` }),
      );
      heat.node.before(wave);
    }
    const second = (s) => left + (s / length) * w;
    for (const [i, span] of (data.spoken ?? []).entries())
      heat.marks.append(
        svg("path", {
          class: "spoken",
          d: `M${second(span[0])} ${heat.top + (i + 0.5) * heat.down}H${second(span[1])}`,
        }),
      );
    const axis = svg("svg", {
      width: left + w,
      height: 20,
      viewBox: `0 0 ${left + w} 20`,
      "aria-hidden": "true",
    });
    const step = length > 20 ? 5 : length > 6 ? 1 : 0.5;
    for (let s = 0; s <= length; s += step)
      axis.append(
        svg(
          "text",
          { class: "tick", x: second(s), y: 12, "text-anchor": s ? "middle" : "start" },
          `${number(s, step < 1 ? 1 : 0)} s`,
        ),
      );
    heat.node.querySelector(".scroll").after(axis);
    body.append(
      el(
        "p",
        { class: "facts" },
        data.spoken
          ? "Ground: attention. Bars: when CTC says that the token was spoken."
          : "Ground: attention.",
      ),
    );
  },
};

export const forecast = {
  async load({ side, inspect, run }) {
    const windows = windowsOf(side.input[0], run.series).slice(0, MANY_SERIES);
    if (!windows.length) throw new ApiError("There is no column of numbers in this table.");
    const found = await Promise.all(windows.map((window) => inspect({}, [window])));
    return { ...found[0], series: found.flatMap((one) => one.series) };
  },

  draw({ body, width, options, remember, again }, data) {
    const all = data.series;
    const chosen =
      options.series === undefined || options.series === null
        ? all.slice(0, 6)
        : all.filter((one) => one.name === options.series);
    if (all.length > 1)
      body.append(
        el(
          "div",
          { class: "controls", "data-no-export": true },
          field(
            "Series",
            choice(
              [["", all.length > 6 ? "the first six" : "all"], ...all.map((one) => one.name)],
              options.series ?? "",
              (value) => {
                remember({ series: value || null });
                again();
              },
              "series",
            ),
          ),
        ),
      );
    for (const series of chosen) {
      const levels = Object.keys(series.quantiles ?? {})
        .map(Number)
        .sort((a, b) => a - b);
      const at = (level) => series.quantiles[String(level)] ?? [];
      const past = series.history.length;
      const shownPast = Math.max(4 * series.mean.length, 50);
      const from = Math.max(0, past - shownPast);
      const history = series.history.slice(from).map((value, i) => [from + i + 1, value ?? NaN]);
      const last = [past, series.history.at(-1)];
      const bands = [];
      for (let i = 0; i < Math.floor(levels.length / 2); i++) {
        const [low, high] = [at(levels[i]), at(levels.at(-1 - i))];
        bands.push({
          points: [
            [last[0], last[1], last[1]],
            ...low.map((value, k) => [past + k + 1, value, high[k]]),
          ],
        });
      }
      const spread =
        levels.length > 1
          ? ` · band: ${number(100 * (levels.at(-1) - levels[0]), 0)} % of what is likely`
          : "";
      body.append(
        el("h3", {}, shown(series.name)),
        lineChart({
          lines: [
            { kind: "past", points: history },
            {
              name: "forecast",
              points: [last, ...series.mean.map((value, i) => [past + i + 1, value])],
            },
          ],
          bands,
          width: width(),
          height: 230,
          label: `${series.name} and its forecast`,
          x: "step",
          divider: past,
        }),
        el("p", { class: "facts" }, `${past} steps known, ${series.mean.length} ahead${spread}`),
      );
    }
  },
};

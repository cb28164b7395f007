/* Charts that can be read at a point: they take the place of the drawn ones, and keep it while data changes. */
(() => {
  "use strict";
  const drawn = new Map(), sync = uPlot.sync("time");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const clock = (at) => new Date(at * 1000).toISOString().slice(11, 16);
  const word = (value, unit) => value == null ? "–" : unit === "s" ? (value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`) : `${value.toPrecision(3)}${unit}`;
  const series = (one) => ({ label: one.name, stroke: colour(one.colour), fill: one.fill && colour(one.fill), width: 1.4, points: { show: false }, paths: one.bars ? uPlot.paths.bars({ size: [0.8, 12] }) : undefined });
  const make = (figure) => {
    const told = JSON.parse(figure.dataset.plot), said = figure.querySelector("output");
    const options = {
      width: figure.clientWidth || 320, height: told.height, padding: [2, 0, 2, 0], legend: { show: false },
      cursor: { sync: { key: sync.key }, y: false, points: { size: 5 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: { distr: told.log ? 3 : 1, range: [told.least, told.top] } },
      axes: [{ show: false }, { show: false }], series: [{}, ...told.series.map(series)],
      hooks: { setCursor: [(plot) => { const at = plot.cursor.idx; said.textContent = at == null ? "" : `${clock(plot.data[0][at])} UTC · ` + told.series.map((one, i) => `${one.name} ${word(plot.data[i + 1][at], told.unit)}`).join(" · "); }] },
    };
    figure.querySelector("svg")?.remove();
    const plot = new uPlot(options, [told.x, ...told.series.map((one) => one.values)], figure);
    sync.sub(plot);
    drawn.set(figure.id, { figure, plot });
  };
  const start = () => document.querySelectorAll("figure[data-plot]").forEach((figure) => { if (!drawn.has(figure.id)) make(figure); });
  document.addEventListener("part", ({ detail }) => {
    for (const fresh of detail.fresh.querySelectorAll("figure[data-plot]")) {
      const known = drawn.get(fresh.id);
      if (!known || !detail.old.contains(known.figure)) continue;
      const told = JSON.parse(fresh.dataset.plot);
      known.figure.dataset.plot = fresh.dataset.plot;
      fresh.replaceWith(known.figure);
      known.plot.setData([told.x, ...told.series.map((one) => one.values)], false);
      known.plot.setScale("y", { min: told.least, max: told.top });
      known.plot.setScale("x", { min: told.x[0], max: told.x[told.x.length - 1] });
    }
  });
  addEventListener("resize", () => drawn.forEach(({ figure, plot }) => { if (figure.isConnected) plot.setSize({ width: figure.clientWidth, height: plot.height }); }));
  start();
})();

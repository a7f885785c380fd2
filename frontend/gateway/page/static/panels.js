"use strict";
// The panels beside the page's own data: the models on GPUs, the answers of families, the versions on trial. Each
// function takes the answer of one path below /v2/downbeat/ and fills its section, which is hidden while it is empty.

// node creates an element; its children are elements or texts.
function node(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

const row = (tag, cells) => node("tr", "", ...cells.map((c) => node(tag, "", c)));
const table = (heads, rows) => node("table", "", row("th", heads), ...rows.map((r) => row("td", r)));
const count = (n, what) => n + " " + what + (n === 1 ? "" : "s");
const bytes = (n) => n >= 1 << 30 ? (n / (1 << 30)).toFixed(1) + " GiB" : n >= 1 << 20 ? (n / (1 << 20)).toFixed(1) + " MiB" : (n / 1024).toFixed(0) + " KiB";
const words = (text) => text.replaceAll("_", " ");

// dot is a model's color before its name.
function dot(color) {
  const e = node("i", "dot");
  e.style.background = color;
  return e;
}

// gpusMost bounds the number of GPUs that are drawn.
const gpusMost = 48;

// residency draws the GPUs by kind and sub-cluster, with the models on each, as wide as they are large, and the
// current plan.
function residency(p) {
  const news = [p.number === 0 ? "no plan was applied since the scheduler started" : `plan ${p.number} is ${p.state}: ${count(p.steps_taken, "step")} taken, ${p.steps_left} left`];
  const lines = [...(p.under_way || []).map((s) => `under way: ${s.act} ${s.model} on ${s.gpu}`), ...(p.left_out || []).map((s) => `left out: ${s.model} on ${s.gpu}: ${s.why}`)];
  if ((p.not_served || []).length) lines.push("not served for a while, since no GPU has room for both: " + p.not_served.join(", "));
  $("planbox").hidden = p.gpus.length === 0;
  $("planstate").textContent = news[0];
  $("plannews").replaceChildren(...lines.map((text) => node("li", "", text)));

  // One scale for all GPUs: the contents of the fullest. Their memory may be a thousand times larger.
  const held = (g) => sum(g.models.map((m) => m.static_bytes + m.dynamic_bytes)), most = Math.max(1, ...p.gpus.map(held));
  const groups = new Map();
  for (const g of p.gpus.slice(0, gpusMost)) {
    const key = [g.kind || "kind not told", "sub-cluster " + g.subcluster].join(" · ");
    groups.set(key, [...(groups.get(key) || []), g]);
  }
  const drawn = [];
  for (const [key, gpus] of groups) {
    drawn.push(node("h4", "", key + " · " + count(gpus.length, "GPU")));
    for (const g of gpus) {
      const bar = node("div", "bar", ...g.models.map(segment));
      bar.style.width = Math.max(1, 100 * held(g) / most) + "%";
      drawn.push(node("div", "gpu", node("span", "", g.gpu), node("div", "", bar), node("span", "quiet", g.memory_bytes ? bytes(g.used_bytes) + " of " + bytes(g.memory_bytes) : bytes(held(g)))));
    }
  }
  if (p.gpus.length > gpusMost) drawn.push(node("p", "quiet", `${p.gpus.length - gpusMost} GPUs more`));
  $("residency").replaceChildren(...drawn);
}

// segment is one model on a GPU. A model that takes no requests there, not yet or no longer, is pale.
function segment(m) {
  const size = m.static_bytes + m.dynamic_bytes, e = node("span", m.state === "offered" ? "" : "pale", m.model);
  e.title = `${m.model}: ${bytes(size)}, ${m.state}, ${short(m.rate)} requests/s on all GPUs`;
  e.style.flexGrow = Math.max(size, 1);
  e.style.background = colorOf(m.model.replace(":", "/"));
  return e;
}

// The latest answers of explain, oldest first. Prices and shares over time begin when the page was opened.
const explained = [], explainedMost = 120;

// explanation draws prices, and for every family which variants answer it and why.
function explanation(x) {
  spareWork = x.spare || [];
  explained.push(x);
  if (explained.length > explainedMost) explained.shift();
  const shown = x.families.filter((f, i) => f.last_minute.answers > 0 || f.last_minute.drops.length > 0 || i === 0 || x.families[i - 1].family !== f.family);
  $("familybox").hidden = shown.length === 0;
  if ($("familybox").hidden) return;

  const curves = x.kinds.map((k, i) => ({color: colors[i % colors.length], values: explained.map((e) => e.kinds.find((o) => o.name === k.name)?.price ?? 0)}));
  $("pricebox").hidden = curves.length === 0;
  curveChart($("prices"), 84, curves, 0, Math.max(0.01, ...curves.flatMap((c) => c.values)), (v) => String(+v.toPrecision(2)));
  $("kinds").replaceChildren(...x.kinds.map((k, i) => node("span", "", dot(curves[i].color),
    `${k.name}: ${count(k.gpus, "GPU")}, price ${k.price.toPrecision(3)}, ${k.price_last_minute.toPrecision(3)} in the last minute, ${(100 * k.bad_share).toFixed(2)} % bad`)));

  $("families").replaceChildren(...shown.map(familyCard));
  for (const [i, f] of shown.entries()) shareChart($("families").children[i].querySelector("canvas"), f);
}

// familyCard is a family, or a class of it by its floor.
function familyCard(f) {
  const lately = f.lately, minute = f.last_minute;
  const card = node("article", "model family", node("h3", "", node("span", "name", f.family),
    node("span", "quiet", `accuracy ${f.floor} or more, asked ${f.floor_asked ? "with" : "without"} a floor · ${short(f.rate)} requests/s · ${f.queued} queued`)));
  if (f.reason) card.append(node("p", "warn", "not served: " + f.reason));
  card.append(node("p", "quiet", minute.answers === 0 ? minute.drops.length === 0 ? "nobody asked in the last minute" : "no answer in the last minute" :
    `accuracy ${lately.answers ? lately.accuracy.toFixed(4) : "–"} lately, ${minute.accuracy.toFixed(4)} in the last ${minute.seconds.toFixed(0)} s of ${count(minute.answers, "answer")}`));
  if (f.one_more) card.append(node("p", "quiet", `one request more: ${f.one_more.model} on ${f.one_more.kind}, ${f.one_more.gpu_ms.toPrecision(3)} ms of GPU time for ${f.one_more.cost.toPrecision(2)} of accuracy`));
  card.append(node("canvas", "shares"));

  const share = (v, among) => among.variants.find((a) => a.model === v.model && a.version === v.version)?.share ?? 0;
  card.append(table(["variant", "accuracy", "on", "batch", "GPU ms", "lately", "minute", "why"], (f.variants || []).map((v) => [
    node("span", "", dot(colorOf(v.model + "/" + v.version)), v.model + ":" + v.version), String(v.accuracy), v.kind || "", v.batch ? String(v.batch) : "", v.gpu_ms ? v.gpu_ms.toPrecision(3) : "",
    percent(share(v, lately), lately.answers && 1), percent(share(v, minute), minute.answers && 1), v.intended ? "intended" : v.left_out || ""])));
  for (const d of minute.drops) card.append(node("p", "warn", `${d.requests} dropped by “${d.rule}” (${words(d.reason)})${d.text ? ": " + d.text : ""}`));
  return card;
}

// shareChart draws which variants answered a family over time, the lightest at the top.
function shareChart(canvas, f) {
  const past = explained.map((x) => x.families.find((o) => o.family === f.family && o.floor === f.floor && o.floor_asked === f.floor_asked)?.lately.variants || []);
  const {g, x, y} = chartFrame(canvas, 64, 0, 1, past.length, (v) => 100 * v + " %");
  const names = [...new Map(past.flat().map((v) => [v.model + "/" + v.version, v.accuracy]))].sort((a, b) => b[1] - a[1]);
  canvas.title = names.map(([key]) => key).join(", ");
  const below = past.map(() => 0);
  for (const [key] of names) {
    const add = past.map((all) => all.find((v) => v.model + "/" + v.version === key)?.share ?? 0);
    fillBetween(g, x, y, below, below.map((b, i) => b + add[i]), colorOf(key), 0.75);
    add.forEach((a, i) => { below[i] += a; });
  }
}

// A learner's accuracy over the last two minutes: each second is the mean of the comparisons near it.
const learntSeconds = 120, learntNear = 4;
let spareWork = []; // of the latest explanation

// learners draws the state of learners: the accuracy of the serving weights beside that of the first weights.
function learners(d) {
  $("learnerbox").hidden = d.learners.length === 0;
  $("learners").replaceChildren(...d.learners.map((l) => {
    const last = l.accuracy.at(-1), steps = spareWork.filter((w) => w.name === "learn " + l.model);
    const others = l.versions.filter((v) => v !== l.version);
    return node("article", "model family",
      node("h3", "", node("span", "name", l.model), node("span", "quiet", `version ${l.version} serves${others.length ? "; " + others.join(", ") + " can be put in force again" : ""}`)),
      node("p", "quiet", `${l.learning ? "learns" : "waits for a drift"}: ${count(l.samples, "sample")}, ${count(l.training_steps, "training step")}, ${count(l.drifts, "drift")}, ${l.published} published, ${l.discarded} thrown away`),
      ...steps.map((w) => node("p", w.suspended ? "warn" : "quiet", `idle GPUs of ${w.backend} get steps of ${w.step_ms.toPrecision(3)} ms at most${w.suspended ? ": suspended: the backend did not report the end of a step" : ""}`)),
      node("canvas", "learnt"),
      node("div", "legend", node("span", "", dot(css("--accent")), "rightly answered by what serves" + (last ? ": " + percent(last.serving, 1) : "")),
        node("span", "", dot(css("--warn")), `by version ${l.first_version}, with which learning began` + (last ? ": " + percent(last.first, 1) : ""))));
  }));
  for (const [i, l] of d.learners.entries()) drawLearnt($("learners").children[i].querySelector("canvas"), l);
}

function drawLearnt(canvas, l) {
  const near = (i) => l.accuracy.filter((a) => Math.abs(a.seconds_ago - (learntSeconds - 1 - i)) <= learntNear);
  const mean = (all, of) => all.length ? sum(all.map((a) => a.samples * of(a))) / sum(all.map((a) => a.samples)) : null;
  const seconds = Array.from({length: learntSeconds}, (_, i) => near(i));
  const curves = [{color: css("--warn"), values: seconds.map((all) => mean(all, (a) => a.first))}, {color: css("--accent"), values: seconds.map((all) => mean(all, (a) => a.serving))}];
  const known = curves.flatMap((c) => c.values).filter((v) => v != null), low = Math.min(0.9, ...known.map((v) => Math.floor(10 * v) / 10));
  const {g, x, y} = curveChart(canvas, 110, curves, low, 1, (v) => Math.round(100 * v) + " %");

  // A line where another version began to serve.
  l.accuracy.forEach((a, i) => {
    if (i === 0 || a.version === l.accuracy[i - 1].version || a.seconds_ago > learntSeconds) return;
    const at = x(learntSeconds - 1 - a.seconds_ago);
    g.strokeStyle = css("--line"); g.lineWidth = 1;
    g.beginPath(); g.moveTo(at, y(1)); g.lineTo(at, y(low)); g.stroke();
    g.fillStyle = css("--quiet"); g.textAlign = "left";
    g.fillText("v" + a.version, at + 2, y(1) + 9);
  });
}

// canaries lists the rules for versions on trial, with their counts.
function canaries(d) {
  $("canarybox").hidden = d.canaries.length === 0;
  const ends = (e) => `${e.good} good, ${e.bad} bad, ${millis(e.good + e.bad ? 1e3 * e.seconds / (e.good + e.bad) : 0)}`;
  $("canaries").replaceChildren(table(["model", "base", "tried", "share", "base's requests", "tried version's", "copied", "copies: same", "different", "failed", "not made", "largest difference"],
    d.canaries.map((c) => [c.model, c.base, c.version || "none", percent(c.share, 1), ends(c.base_ends), c.version ? ends(c.version_ends) : "–", percent(c.shadow, 1),
      ...[c.copies.same, c.copies.different, c.copies.failed, c.copies.skipped].map(String), String(+c.copies.difference.toPrecision(3))])));
}

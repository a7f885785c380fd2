"use strict";
// Draws the answer of /v2/downbeat/page, once a second. Uses no library and no other host.

const colors = ["#3b6fd4", "#d9822b", "#2b9e77", "#a855c7", "#c44569", "#6b8e23", "#0f8aa8", "#94713c", "#e377c2", "#b8a200", "#7f8794", "#5e3c99"];
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const theme = new URLSearchParams(location.search).get("theme");
if (theme) document.documentElement.dataset.theme = theme;

const sum = (a) => a.reduce((x, y) => x + y, 0);
const tail = (a, n) => a.slice(Math.max(0, a.length - n));
const short = (n) => n >= 1e6 ? (n / 1e6).toFixed(1) + "M" : n >= 1e4 ? (n / 1e3).toFixed(1) + "k" : n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1).replace(/\.0$/, "") : n.toFixed(1).replace(/\.0$/, "");
const millis = (n) => n === 0 ? "–" : n >= 100 ? n.toFixed(0) + " ms" : n >= 10 ? n.toFixed(1) + " ms" : n.toFixed(2) + " ms";
const percent = (part, all) => all === 0 ? "–" : (100 * part / all).toFixed(part > 0 && part / all < 0.01 ? 2 : 1).replace(/\.0$/, "") + " %";

// colorOf gives each model its own color, by its position among all models.
let order = [];
const colorOf = (key) => {
  if (!order.includes(key)) order.push(key);
  return colors[order.indexOf(key) % colors.length];
};

// surface sizes a canvas for the screen and returns its context in CSS pixels.
function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  g.font = "11px system-ui, sans-serif";
  return [g, width, height];
}

// round returns the next 1, 2 or 5 times a power of ten.
function roundUp(n) {
  const p = Math.pow(10, Math.floor(Math.log10(Math.max(n, 1))));
  return [1, 2, 5, 10].map((k) => k * p).find((k) => k >= n) || 10 * p;
}

// chartFrame draws the grid and the scale of a chart of n values per second each, and returns their positions.
function chartFrame(canvas, height, low, high, n, label) {
  const [g, w, h] = surface(canvas, height), left = 42, top = 6, bottom = h - 14;
  const x = (i) => left + (w - left) * (n > 1 ? i / (n - 1) : 1), y = (v) => bottom - (bottom - top) * (v - low) / (high - low);
  g.strokeStyle = css("--grid");
  g.fillStyle = css("--quiet");
  g.textAlign = "right";
  g.textBaseline = "middle";
  for (const v of [low, (low + high) / 2, high]) {
    g.beginPath(); g.moveTo(left, y(v)); g.lineTo(w, y(v)); g.stroke();
    g.fillText(label(v), left - 6, y(v));
  }
  g.textBaseline = "alphabetic";
  g.fillText("now", w, h - 2);
  g.textAlign = "left"; g.fillText(n + " s ago", left, h - 2);
  return {g, x, y};
}

// fillBetween fills the area between two curves.
function fillBetween(g, x, y, from, to, fill, alpha) {
  g.globalAlpha = alpha; g.fillStyle = fill;
  g.beginPath(); g.moveTo(x(0), y(from[0]));
  for (let i = 0; i < to.length; i++) g.lineTo(x(i), y(to[i]));
  for (let i = from.length - 1; i >= 0; i--) g.lineTo(x(i), y(from[i]));
  g.fill(); g.globalAlpha = 1;
}

// curve draws a line through values, with a gap where there is none.
function curve(g, x, y, values, color) {
  g.strokeStyle = color; g.lineWidth = 1.5;
  g.beginPath();
  values.forEach((v, i) => { if (v != null) values[i - 1] == null ? g.moveTo(x(i), y(v)) : g.lineTo(x(i), y(v)); });
  g.stroke();
}

// curveChart draws curves of the same length on one scale.
function curveChart(canvas, height, curves, low, high, label) {
  const frame = chartFrame(canvas, height, low, high, curves[0]?.values.length ?? 0, label);
  for (const c of curves) curve(frame.g, frame.x, frame.y, c.values, c.color);
  return frame;
}

// series draws good (filled) and bad (on top, red) per second.
function series(canvas, m, color) {
  const all = m.good.map((v, i) => v + m.bad[i]), high = roundUp(Math.max(...all, 1));
  const {g, x, y} = chartFrame(canvas, 84, 0, high, m.good.length, short);
  fillBetween(g, x, y, all.map(() => 0), m.good, color, 0.28);
  if (sum(m.bad) > 0) fillBetween(g, x, y, m.good, all, css("--bad"), 0.75);
  curve(g, x, y, m.good, color);
}

// sizes draws how many requests were in batches of each size.
function sizes(canvas, m, color) {
  const [g, w, h] = surface(canvas, 54), bottom = h - 14;
  const counts = (m.sizes || []).map((n, b) => n * b);
  let last = counts.length - 1;
  while (last > 1 && !counts[last]) last--;
  const high = Math.max(...counts, 1), bars = Math.max(last, 8), step = w / bars;
  g.fillStyle = color; g.globalAlpha = 0.85;
  for (let b = 1; b <= last; b++) {
    const tall = (bottom - 2) * counts[b] / high;
    if (counts[b]) g.fillRect((b - 1) * step + 1, bottom - Math.max(tall, 1), Math.max(step - 2, 1), Math.max(tall, 1));
  }
  g.globalAlpha = 1;
  g.strokeStyle = css("--line");
  g.beginPath(); g.moveTo(0, bottom + .5); g.lineTo(w, bottom + .5); g.stroke();
  g.fillStyle = css("--quiet"); g.textAlign = "center";
  const every = Math.max(1, Math.ceil(bars / 12));
  for (let b = 1; b <= bars; b++) if (b === 1 || b % every === 0) g.fillText(b, (b - .5) * step, h - 2);
}

// timeline draws one row per GPU and one block per batch.
function timeline(d) {
  const canvas = $("timeline"), none = $("notimeline");
  canvas.hidden = none.hidden = false;
  if (!d.scheduler || d.gpus.length === 0) {
    canvas.hidden = true;
    none.textContent = d.scheduler ? "No GPU is connected." : "The scheduler runs in another process; its batches are not known here. Run downbeat serve to see them.";
    return;
  }
  none.hidden = true;
  const rows = d.gpus.slice(0, 48), row = rows.length > 16 ? 14 : 22;
  const [g, w, h] = surface(canvas, rows.length * row + 20), left = Math.min(150, .36 * w);
  const x = (ms) => left + (w - left) * (1 - ms / d.window);
  const label = (text, room) => { while (text.length > 3 && g.measureText(text).width > room) text = text.slice(0, -2) + "…"; return text; };
  g.textBaseline = "middle";
  const at = new Map();
  rows.forEach((u, i) => {
    at.set(u.id, i);
    g.fillStyle = css("--grid");
    g.fillRect(left, i * row + 2, w - left, row - 4);
    g.fillStyle = css("--text"); g.textAlign = "left";
    g.fillText(label(u.name, left - 60), 0, i * row + row / 2);
    g.fillStyle = css("--quiet"); g.textAlign = "right";
    g.fillText(Math.round(100 * u.busy) + " %", left - 10, i * row + row / 2);
  });
  const models = new Map(d.models.map((m) => [m.id, m.name + "/" + m.version]));
  for (const s of d.steps || []) {
    if (!at.has(s.g)) continue;
    const a = Math.max(x(s.s), left), y = at.get(s.g) * row + 2;
    g.strokeStyle = css("--quiet"); g.lineWidth = 1;
    g.strokeRect(a + .5, y + .5, Math.max(x(s.e) - a - 1, 1), row - 5);
  }
  for (const b of d.batches || []) {
    if (!at.has(b.g)) continue;
    const a = Math.max(x(b.s), left), z = Math.max(x(b.e), a + 1), y = at.get(b.g) * row + 2;
    g.fillStyle = colorOf(models.get(b.m) || "?");
    g.globalAlpha = .9;
    g.fillRect(a, y, z - a - (z - a > 3 ? .75 : 0), row - 4);
    g.globalAlpha = 1;
    if (z - a > 16 && row > 16) { g.fillStyle = "#fff"; g.textAlign = "center"; g.fillText(b.n, (a + z) / 2, y + (row - 4) / 2 + .5); }
  }
  g.fillStyle = css("--quiet"); g.textBaseline = "alphabetic";
  for (let i = 0; i <= 4; i += w < 560 ? 2 : 1) {
    const ms = d.window * (1 - i / 4);
    g.textAlign = i === 0 ? "left" : i === 4 ? "right" : "center";
    g.fillText(i === 4 ? "now" : "−" + ms + " ms", x(ms), h - 4);
  }
  $("span").textContent = "the last " + d.window + " ms; numbers in blocks are batch sizes" + ((d.steps || []).length ? ", empty blocks steps of spare work" : "");
}

// card creates a model's panel once; update fills it.
function card(key) {
  const el = document.createElement("article");
  el.className = "model";
  el.dataset.key = key;
  el.innerHTML = `<h3><i></i><span class="name"></span><span class="quiet state"></span></h3>
    <div class="numbers"><div><b class="good"></b>goodput r/s</div><div class="badbox"><b class="bad"></b>bad</div><div><b class="p50"></b>p50</div><div><b class="p99"></b>p99</div></div>
    <canvas class="chart"></canvas><h4><span class="reasons"></span></h4>
    <h4 class="sizehead"><span>requests by batch size</span><span class="mean"></span></h4><canvas class="sizes"></canvas>`;
  return el;
}

function update(el, m, key, scheduler) {
  const color = colorOf(key), q = (c) => el.querySelector("." + c);
  el.querySelector("i").style.background = color;
  q("name").textContent = m.name;
  q("state").textContent = (m.ready ? "" : "no backend · ") + "version " + m.version + " · SLO " + m.slo + " ms";
  const good = sum(tail(m.good, 10)), bad = sum(tail(m.bad, 10));
  q("good").textContent = short(good / 10);
  q("bad").textContent = percent(bad, good + bad);
  q("badbox").classList.toggle("warn", bad > 0.01 * (good + bad));
  q("p50").textContent = millis(m.p50);
  q("p99").textContent = millis(Math.max(...tail(m.p99, 10)));
  series(q("chart"), m, color);
  const reasons = Object.entries(m.reasons || {}).sort((a, b) => b[1] - a[1]).map(([r, n]) => r.replaceAll("_", " ") + " " + short(n));
  q("reasons").textContent = reasons.length ? "bad: " + reasons.join(", ") : "nothing bad in two minutes";
  const known = scheduler && (m.sizes || []).length > 0;
  q("sizehead").hidden = q("sizes").hidden = !known;
  if (known) {
    const batches = sum(m.sizes), requests = sum(m.sizes.map((n, b) => n * b));
    q("mean").textContent = batches ? "mean " + (requests / batches).toFixed(1) + ", " + short(batches) + " batches" : "";
    sizes(q("sizes"), m, color);
  }
}

function draw(d) {
  $("version").textContent = d.version;
  $("state").textContent = !d.connected ? "no scheduler" : d.models.length === 0 ? "no models" : d.ready ? "serving" : "some models lack a backend";
  $("state").className = "pill " + (!d.connected ? "bad" : d.ready ? "ok" : "");
  const good = sum(d.models.map((m) => sum(tail(m.good, 10)))), bad = sum(d.models.map((m) => sum(tail(m.bad, 10))));
  $("goodput").textContent = short(good / 10);
  $("bad").textContent = percent(bad, good + bad);
  $("p99").textContent = millis(Math.max(0, ...d.models.map((m) => Math.max(...tail(m.p99, 10)))));
  $("live").textContent = d.live;
  $("elsewhere").hidden = !d.elsewhere;
  order = d.models.map((m) => m.name + "/" + m.version);
  timeline(d);
  $("legend").replaceChildren(...(d.scheduler ? order : []).map((key) => {
    const s = document.createElement("span"), i = document.createElement("i");
    i.style.background = colorOf(key);
    s.append(i, key);
    return s;
  }));
  const box = $("models"), cards = new Map([...box.children].map((e) => [e.dataset.key, e]));
  const all = d.models.map((m) => {
    const key = m.name + "/" + m.version, el = cards.get(key) || card(key);
    return [el, m, key];
  });
  if (all.length !== box.children.length || all.some(([el], i) => box.children[i] !== el)) box.replaceChildren(...all.map(([el]) => el));
  for (const [el, m, key] of all) update(el, m, key, d.scheduler);
  $("nomodels").hidden = all.length > 0;
  document.documentElement.dataset.drawn = "yes";
}

// sessions lists the promises of sessions and how they are kept, and draws the stages of the latest frames.
function sessions(d) {
  const rows = d.applications.flatMap((a) => a.sessions.map((s) => [a.name, (s.name || "session " + s.number), short(s.rate) + " frames/s", millis(s.latency_ns / 1e6),
    percent(s.in_time, s.frames), String(s.late + s.failed), String(s.skipped), s.hurt ? "broken" : "kept"]));
  const frames = d.applications.flatMap((a) => (a.latest || []).slice(0, 6).map((f) => ({...f, names: a.steps, title: a.name + (f.session ? " " + f.session : "")})));
  $("sessionbox").hidden = rows.length + frames.length === 0;
  if ($("sessionbox").hidden) return;
  $("sessions").replaceChildren(table(["application", "session", "promised", "latency", "in time", "lost", "skipped", "promise"], rows));

  const high = frames.reduce((n, f) => n + f.steps.length + 1, 0), row = 12;
  const [g, w] = surface($("frames"), Math.max(high, 1) * row), left = Math.min(150, .36 * w);
  let y = 0;
  g.textBaseline = "middle";
  for (const f of frames) {
    const x = (ns) => left + (w - left) * Math.min(1, ns / Math.max(f.budget_ns, f.elapsed_ns, 1));
    f.steps.forEach((s, j) => {
      g.fillStyle = css("--grid"); g.fillRect(left, y + 1, w - left, row - 2);
      g.fillStyle = s.end ? css("--bad") : colors[j % colors.length];
      g.fillRect(x(s.from_ns), y + 1, Math.max(1, x(s.to_ns) - x(s.from_ns)), row - 2);
      g.fillStyle = css("--text"); g.textAlign = "left";
      g.fillText((j === 0 ? f.title + " · " : "") + f.names[j], 0, y + row / 2);
      y += row;
    });
    y += row;
  }
}

// fetchStatus fetches one of the gateway's answers; null: there is none, because its scheduler runs elsewhere.
async function fetchStatus(what) {
  const answer = await fetch("/v2/downbeat/" + what, {cache: "no-store"});
  if (!answer.ok && what === "page") throw new Error(answer.status);
  return answer.ok ? answer.json() : null;
}

async function turn() {
  try {
    const d = await fetchStatus("page");
    draw(d);
    const beside = {sessions, canary: canaries, learners};
    if (d.scheduler) Object.assign(beside, {plan: residency, explain: explanation});
    for (const [what, show] of Object.entries(beside)) {
      const told = await fetchStatus(what);
      if (told) show(told);
    }
  } catch (err) {
    $("state").textContent = "gateway does not answer";
    $("state").className = "pill bad";
  }
  setTimeout(turn, 1000);
}
turn();

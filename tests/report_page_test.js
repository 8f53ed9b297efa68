// report_page_test.js - runs the script of report.html without a browser: node report_page_test.js PAGE
//
// The document is a stub: elements are objects with a tag, attributes and children, and text() is what a reader sees.
// Facts stand in for {{run}}.
"use strict";
const fs = require("fs"), assert = require("assert");

const page = fs.readFileSync(process.argv[2], "utf8");
const script = page.match(/<script>\n([\s\S]*)<\/script>/)[1];

class Element {
  constructor(tag) { this.tag = tag; this.attributes = {}; this.children = []; this.style = {}; this.listeners = {}; }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  addEventListener(name, run) { this.listeners[name] = run; }
  getBoundingClientRect() { return { left: 0, width: 100 }; }
  set textContent(text) { this.children = [text]; }
  cloneNode() { return new Element(this.tag); }
  all() { return [this, ...this.children.flatMap(c => c instanceof Element ? c.all() : [])]; }
  text() { return this.children.map(c => c instanceof Element ? c.text() : String(c)).join(""); }
}

const facts = {
  version: "1.2", base_model: "models/it's/", output_dir: "out", file: "run.yml", method: "LoRA, rank 8", full: false, mergeable: true,
  interrupted: false, stopped: null, step: 1234, steps: 2000, first_step: 0, epoch: 1, seconds: 65, load_best: false, result_step: 5,
  best_eval: null, greater_is_better: false, first_loss: 3, final_loss: 2e-5, evaluated: true, eval_loss: 1234.56, extreme_loss: 0.5,
  extreme_step: 7, tokens_per_second: null, memory_bytes: 1014000, memory_budget: 0, last_step: 60,
  series: { loss: [], eval_loss: [], grad_norm: [], learning_rate: [], tokens_per_second: [] },
  samples: [{ prompt: "<b>&", before: "", after: null, wanted: "w" }], samples_missing: null, sample_tokens: 48, held_back: 0,
  memory: [["weights", 3072], ["nothing", 0]], recompute: "part", recomputed_layers: 2, layers: 4,
  data: [["examples", 1234567], ["from", "a.jsonl"]], machine: [["threads", 2]], configuration: "a: 1\n",
};

function show(changes) {
  const main = new Element("main"), source = new Element("script");
  source.textContent = JSON.stringify({ ...facts, ...changes });
  Object.defineProperty(source, "textContent", { get() { return this.children[0]; } });
  const document = {
    getElementById: id => id === "curves" ? { content: { firstElementChild: new Element("svg") } } : source, createElement: tag => new Element(tag), createElementNS: (_, tag) => new Element(tag),
    querySelector: () => main,
  };
  new Function("document", script)(document);
  return { main, text: main.text(), title: document.title };
}
function has(shown, ...words) {
  for (const word of words) assert(shown.text.includes(word), `no "${word}" in: ${shown.text}`);
}
const steps = (n, value) => Array.from({ length: n }, (_, i) => [i + 1, value(i), value(i)]);

// Numbers, sizes and commands as a reader wants them.
let shown = show({});
assert.equal(shown.title, "it's: LoRA, rank 8");
has(shown, "Finished · model models/it's/ · result in out", "2e-05", "from 3", "1235", "lowest 0.5 at step 7", "1,234of 2,000, 1.00 epochs",
  "–median", "1:05", "1.01\u00a0MB", "nibble chat 'models/it'\\''s/' --adapter out\n", "nibble merge", "1,234,567", "a.jsonl",
  "norms, rotations and the like of 2 of 4 layers", "<b>&", "(nothing)", "(not made)", "the run was interrupted", "nibble 1.2 · run.yml");
assert.equal(shown.text.split("Nothing was recorded.").length - 1, 4);

// The course of a run.
has(show({ interrupted: true, stopped: "why" }), "Interrupted after step 1234: why", "nibble train run.yml --resume");
has(show({ stopped: "why" }), "Stopped after step 1234: why");
has(show({ load_best: true, best_eval: 1 }), "result of step 5, the best, in out");
has(show({ load_best: true }), "result of step 5 in out");
has(show({ full: true }), "nibble chat out\nnibble export out MODEL.gguf");
has(show({ samples: [], samples_missing: null }), "No samples: none were asked for.");
has(show({ samples: [], samples_missing: "x" }), "No samples: x.");

// Curves: one point, few, many with evaluations; any values.
const drawn = series => show({ series: { ...facts.series, ...series } }).main.all();
const styles = all => all.filter(e => e.tag === "path").map(e => e.attributes.class).join(" ");
assert.equal(styles(drawn({ loss: steps(1, () => 2) })), "grid one");
assert.equal(styles(drawn({ loss: steps(39, i => i) })), "grid line");
assert.equal(styles(drawn({ loss: steps(60, i => i), eval_loss: [[30, 2, 2]] })), "grid raw line trend dots");
assert.equal(styles(drawn({ learning_rate: steps(60, i => i) })), "grid line");
for (const value of [0, 1, -1, 1e-310, 1e-12, 3.25, 1e9, 1e308, -1e308])
  for (const other of [value, -value / 3]) {
    const all = drawn({ loss: steps(50, i => i === 25 ? other : value) });
    for (const path of all.filter(e => e.tag === "path")) assert(/^[MLHh0-9 ]+$/.test(path.attributes.d), `${value}: ${path.attributes.d}`);
    const labels = all.find(e => e.attributes.class === "ys").children.map(c => c.text());
    assert(labels.length >= 2 && labels.length <= 13 && !labels.some(l => /NaN|Infinity|–/.test(l)), `${value}: ${labels}`);
  }

// Values under the pointer.
const all = drawn({ loss: steps(60, i => i / 4), eval_loss: [[30, 2, 2]] });
all.find(e => e.attributes.class === "plot").listeners.pointermove({ clientX: 50 });
assert.equal(all.find(e => e.attributes.class === "read").text(), "step 30  7.25  evaluation 2");
console.log("report_page: passed");

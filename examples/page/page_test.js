// SPDX-License-Identifier: Apache-2.0
// Tests the functions of page.html's script.
//
// usage: node page_test.js PAGE

"use strict";
const assert = require("node:assert");
const fs = require("node:fs");
const vm = require("node:vm");

const script = fs.readFileSync(process.argv[2], "utf8").split(/<\/?script>/)[1];
const page = vm.runInThisContext(`(() => {${script}
return {html, short, ticks, bytes, lineChart, memoryChart, timeline, timesOf, timeTable,
        tiles};
})()`);
const {short, ticks, bytes} = page;
const text = (name) => (...values) => String(page[name](...values));
const [lineChart, memoryChart, timeline, timeTable, tiles] =
    ["lineChart", "memoryChart", "timeline", "timeTable", "tiles"].map(text);

function checkContains(actual, present, absent = []) {
  for (const one of present) assert.ok(actual.includes(one), `${one} in ${actual}`);
  for (const one of absent) assert.ok(!actual.includes(one), `no ${one} in ${actual}`);
}

const tests = {
  ticksCoverTheirRange() {
    for (const [low, high] of [[0, 1], [2.3, 9.7], [1e-9, 3e-9], [-5, 5], [1e6, 1.0001e6],
                               [1, 1 + 2 ** -52], [-1, -1 + 2 ** -53], [1e300, 1e300]]) {
      const found = ticks(low, high, 4);
      assert.ok(found[0] <= low);
      assert.ok(found[found.length - 1] >= high * (1 - 1e-12));
      assert.ok(found.length >= 2 && found.length <= 8, found);
      assert.deepStrictEqual(found, [...found].sort((a, b) => a - b));
    }
    // A single value has a place too.
    assert.ok(ticks(3, 3, 4).length >= 2 && ticks(0, 0, 4).length >= 2);
  },

  numbersAreShort() {
    assert.deepStrictEqual([0, 0.0003, 1234, 45300, -2.5e6, 7e9].map(short),
                           ["0", "0.0003", "1234", "45.3K", "-2.5M", "7G"]);
    assert.deepStrictEqual([0, 1023, 1536, 3 * 2 ** 40].map(bytes),
                           ["0 B", "1023 B", "1.5 KiB", "3.0 TiB"]);
  },

  textIsEscaped() {
    const name = "<b>&\"";
    assert.strictEqual(String(page.html`<i>${name}${[page.html`<u/>`]}</i>`),
                       "<i>&lt;b&gt;&amp;&quot;<u/></i>");
  },

  lineChartDrawsFiniteValues() {
    const a = (points) => ({name: "a", color: 0, points});
    const chart = lineChart([a([[1, 5], [2, null], [3, 7]]), {name: "b", color: 1, points: []}]);
    // From the left edge to the right one.
    checkContains(chart, ['points="62.0,194.0 546.0,12.0"'], ["NaN", ">b<"]);
    assert.strictEqual(lineChart([a([])]), "");
    assert.strictEqual(lineChart([a([[1, null]])]), "");
    checkContains(lineChart([a([[4, 2]])]), ['cx="62.0"']);
  },

  tilesShowWhatIsNotFinite() {
    const last = {step: 3, loss: null, grad_norm: null, tokens_per_s: 10, step_ms: 2,
                  peak_bytes: {total: 1024}};
    checkContains(tiles({computed: true, last}), ["not finite", "gradient norm"], ["0.000"]);
    checkContains(tiles({computed: false, last}), ["1.0 KiB"], ["not finite", "loss"]);
  },

  memoryChartStacksTheClasses() {
    const classes = ["parameter", "gradient", "moment", "activation", "unsharded", "other"];
    const memory = [[0, [1024, 0, 0, 0, 0, 0]], [1000, [1024, 0, 0, 3072, 0, 0]],
                    [2000, [1024, 0, 0, 0, 0, 0]]].map(([us, bytes]) => ({us, bytes}));
    const chart = memoryChart({dry: false, memory}, classes);
    checkContains(chart, ["<title>parameter</title>", "<title>activation</title>",
                          "peak: 4.0 KiB"], ["<title>gradient</title>", "NaN"]);
    assert.strictEqual(memoryChart({dry: false, memory: []}, classes), "");
  },

  timelineHasALaneForEachStreamAndNests() {
    const step = {us: 1000, spans: [
      ["forward", "a<b", "compute", 0, 1000], ["op", "matmul", "compute", 0, 500],
      ["op", "tiny", "compute", 600, 600.01], ["all_gather", "a", "side", 100, 300],
    ].map(([what, subject, row, begin, end]) => ({what, subject, row, begin, end}))};
    checkContains(timeline(step),
                  [">compute<", ">side<", "forward a&lt;b: 1.00 ms", "matmul: 0.50 ms"],
                  ["tiny"]);  // Too narrow to be seen.
    checkContains(timeTable(step), ["50.0 %"]);
    for (const draw of [timeline, timeTable]) {
      assert.strictEqual(draw({us: 0, spans: []}), "");
    }
  },

  timesCountNestedSpansOnce() {
    const spans = [
      ["forward", "a", "compute", 0, 50], ["op", "matmul", "compute", 5, 25],
      ["collective", "all_reduce tp", "compute", 10, 20], ["op", "matmul", "compute", 30, 31],
      ["all_gather", "a", "side", 0, 8], ["forward", "b", "compute", 50, 60],
    ].map(([what, subject, row, begin, end]) => ({what, subject, row, begin, end}));
    assert.deepStrictEqual(
        page.timesOf({us: 100, spans}).map(Object.values),
        [["compute", "rest", 1, 40], ["compute", "forward", 2, 39],
         ["compute", "op matmul", 2, 11], ["compute", "collective all_reduce tp", 1, 10],
         ["side", "all_gather", 1, 8]]);
  },
};

for (const [name, test] of Object.entries(tests)) {
  test();
  console.log(`ok ${name}`);
}

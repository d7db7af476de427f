// The coordinator's page in a browser: page.js BROWSER URL SELECTOR TEXT. Looks at it wide and narrow,
// light and dark, and says what is wrong: something in the console, a request to elsewhere, a page
// wider than its window, a chart's text that is cut off, no TEXT in it. It is drawn once SELECTOR is there.
"use strict";
const {spawn} = require("child_process");
const fs = require("fs");
const os = require("os");
const [browser, url, selector, wanted] = process.argv.slice(2);
const profile = fs.mkdtempSync(os.tmpdir() + "/muster-page.");
const chrome = spawn(browser, ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                               "--user-data-dir=" + profile, "about:blank"],
                     {stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"]});
const PATIENCE = 60000;
const wrong = [];
let leaving = false;
// What the browser has started may write there for a moment yet.
function removeProfile() {
  fs.rmSync(profile, {recursive: true, force: true, maxRetries: 20, retryDelay: 100});
}
function leave(code) {
  leaving = true;
  chrome.kill("SIGKILL");
  chrome.on("exit", () => {
    removeProfile();
    for (const line of new Set(wrong)) console.log(line);
    process.exit(code);
  });
}
chrome.on("error", error => {
  console.log(browser + ": " + error.message);
  removeProfile();
  process.exit(1);
});
chrome.on("exit", (code, signal) => {
  if (leaving) return;
  console.log(browser + " ended: " + (signal || code));
  removeProfile();
  process.exit(1);
});
chrome.stdio[3].on("error", () => {});  // it has ended: told above

// DevTools' protocol: JSON that ends with a NUL, to descriptor 3 and from 4.
let number = 0, came = Buffer.alloc(0), where = "";
const open = new Map();
chrome.stdio[4].on("data", bytes => {
  came = Buffer.concat([came, bytes]);
  for (let end; (end = came.indexOf(0)) >= 0; came = came.subarray(end + 1)) hear(JSON.parse(came.subarray(0, end)));
});
function hear(message) {
  if (message.id !== undefined) return open.get(message.id)(message);
  const said = message.params;
  if (["Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"].includes(message.method)) {
    wrong.push(where + ": in the console: " + JSON.stringify(said).slice(0, 500));
  } else if (message.method === "Network.requestWillBeSent" && !/^(data:|about:)/.test(said.request.url) &&
             new URL(said.request.url).origin !== new URL(url).origin) {
    wrong.push(where + ": asks " + said.request.url);
  }
}
let sessionId;
async function call(method, params = {}) {
  const answer = await new Promise(give => {
    open.set(++number, give);
    chrome.stdio[3].write(JSON.stringify({id: number, method, params, sessionId}) + "\0");
  });
  if (answer.error) throw new Error(method + ": " + answer.error.message);
  return answer.result;
}
async function evaluate(expression) {
  const answer = await call("Runtime.evaluate", {expression, awaitPromise: true, returnByValue: true});
  if (answer.exceptionDetails) throw new Error(where + ": " + JSON.stringify(answer.exceptionDetails).slice(0, 500));
  return answer.result.value;
}

// In the page: what is wrong with how it lies there.
function look(wanted) {
  const wrong = [];
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) wrong.push("is " + page.scrollWidth + " wide");
  for (const drawing of document.querySelectorAll("svg")) {
    const room = drawing.getBoundingClientRect();
    for (const text of drawing.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < room.left - 1 || box.right > room.right + 1) wrong.push("cuts off \"" + text.textContent + "\"");
    }
  }
  if (!document.body.innerText.includes(wanted)) wrong.push("does not say \"" + wanted + "\"");
  return {wrong, colour: getComputedStyle(document.body).backgroundColor};
}

(async () => {
  const {targetId} = await call("Target.createTarget", {url: "about:blank"});
  ({sessionId} = await call("Target.attachToTarget", {targetId, flatten: true}));
  for (const domain of ["Runtime", "Log", "Page", "Network"]) await call(domain + ".enable");
  const colours = {};
  for (const scheme of ["light", "dark"]) for (const width of [1280, 390]) {
    where = `${url} ${width} ${scheme}`;
    await call("Emulation.setDeviceMetricsOverride", {width, height: 900, deviceScaleFactor: 1, mobile: width < 600});
    await call("Emulation.setEmulatedMedia", {features: [{name: "prefers-color-scheme", value: scheme}]});
    await call("Page.navigate", {url: "about:blank"});
    await call("Page.navigate", {url});
    await evaluate(`new Promise((give, fail) => {
      const wait = () => document.querySelector(${JSON.stringify(selector)}) ? give() : setTimeout(wait, 50);
      wait();
      setTimeout(() => fail(new Error("it draws no " + ${JSON.stringify(selector)})), ${PATIENCE});
    })`);
    const seen = await evaluate(`(${look})(${JSON.stringify(wanted)})`);
    colours[scheme] = seen.colour;
    for (const one of seen.wrong) wrong.push(where + ": " + one);
  }
  if (colours.light === colours.dark) wrong.push(url + ": is " + colours.light + " in light and dark");
  leave(wrong.length ? 1 : 0);
})().catch(error => { wrong.push(error.message); leave(1); });

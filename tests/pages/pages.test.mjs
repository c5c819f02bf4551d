// The pages in a real browser: every page without and with a script, at several widths and in both themes, with the rules of
// WCAG 2.2 AA; what is live, zones, paging, the page of a limit, what is empty and what is broken.
//
// BACKSTITCH is the address of an installation with made-up data (`backstitch demo`), DATA its folder, BINARY the program, CHROMIUM the
// browser, SHOTS a folder for screenshots.

import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { after, before, test } from 'node:test';
import { createRequire } from 'node:module';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const address = process.env.BACKSTITCH;
const shots = process.env.SHOTS;
assert.ok(address, 'BACKSTITCH is the address of an installation');

const ids = JSON.parse(process.env.IDS ?? '{"owner":1,"track":1,"segment":1,"athlete":1,"application":1}');
const pages = {
  overview: '/',
  owner: `/owners/${ids.owner}?period=7d&compare=previous`,
  'owner by hour': `/owners/${ids.owner}?period=today&interval=hour&tz=Europe/Berlin`,
  track: `/tracks/${ids.track}?period=30d&by=country`,
  segment: `/segments/${ids.segment}`,
  'segment with an athlete': `/segments/${ids.segment}?athlete=${ids.athlete}`,
  athlete: `/athletes/${ids.athlete}`,
  applications: '/applications',
  application: `/applications/${ids.application}`,
  pipeline: '/pipeline',
  'dead letters': '/pipeline/dead-letters',
  reconciliations: '/pipeline/reconciliations',
  'an owner without plays': '/owners/-1',
  'nobody on a board': '/segments/-1?athlete=5',
  'a zone that is none': `/owners/${ids.owner}?tz=Mars`,
  'an application that is not there': '/applications/-1',
  'a run that is not there': '/pipeline/runs/plays/999999',
  'no page': '/nowhere',
  'signing in': '/signin',
};
// What a page answers that is about what is not there.
const statuses = { 'a zone that is none': 400, 'an application that is not there': 404, 'a run that is not there': 404, 'no page': 404 };
const sizes = { wide: { width: 1280, height: 900 }, narrow: { width: 320, height: 800 } };

let browser;
before(async () => {
  if (shots) mkdirSync(shots, { recursive: true });
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
});
after(async () => { await browser?.close(); });

async function opened(path, options = {}) {
  const context = await browser.newContext({ viewport: sizes.wide, ...options });
  // Content policies stop scripts that are written into the page, so the rules come as another way allows.
  if (options.javaScriptEnabled !== false) await context.addInitScript(axe);
  const page = await context.newPage();
  const faults = [];
  page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
  page.on('console', (message) => { if (message.type() === 'error') faults.push(`console: ${message.text()}`); });
  page.on('request', (request) => { if (!request.url().startsWith(address)) faults.push(`outside: ${request.url()}`); });
  const response = await page.goto(address + path, { waitUntil: 'load' });
  return { context, page, response, faults };
}

// What reaches beyond the window's right edge and is not inside something that scrolls by itself; runs in the page.
function tooWide() {
  if (document.documentElement.scrollWidth <= window.innerWidth) return [];
  const scrolls = (element) => {
    for (let one = element.parentElement; one && one !== document.body; one = one.parentElement) {
      if (getComputedStyle(one).overflowX !== 'visible') return true;
    }
    return false;
  };
  return [...document.querySelectorAll('body *')]
    .filter((one) => one.getBoundingClientRect().right > window.innerWidth && !scrolls(one))
    .map((one) => `${one.tagName} ${one.id} ${one.className} ${one.getBoundingClientRect().right}: ${one.textContent.trim().slice(0, 40)}`);
}

// What breaks the rules of accessibility, each with where.
async function violations(page) {
  const found = await page.evaluate(() => globalThis.axe.run(document, {
    runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'],
  }));
  return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(' ')).join('; ')}`);
}

for (const [name, path] of Object.entries(pages)) {
  test(`${name}, in both themes, wide and narrow`, async () => {
    const { context, page, response, faults } = await opened(path, { reducedMotion: 'reduce' });
    assert.equal(response.status(), statuses[name] ?? 200);
    for (const colorScheme of ['light', 'dark']) {
      for (const [size, viewport] of Object.entries(sizes)) {
        await page.emulateMedia({ colorScheme });
        await page.setViewportSize(viewport);
        if (shots) await page.screenshot({ path: join(shots, `${name}-${colorScheme}-${size}.png`.replaceAll(' ', '-')), fullPage: true });
        assert.deepEqual([colorScheme, size, await violations(page), await page.evaluate(tooWide)], [colorScheme, size, [], []]);
      }
    }
    // A browser tells of a status, too.
    assert.deepEqual(faults.filter((fault) => !(name in statuses && fault.includes(`status of ${statuses[name]}`))), []);
    await context.close();
  });
}

test('without a script each page is whole', async () => {
  for (const path of Object.values(pages)) {
    const { context, page } = await opened(path, { javaScriptEnabled: false });
    assert.ok(await page.locator('h1').count() === 1, path);
    assert.ok(await page.locator('button[hidden]').count() === await page.locator('button[data-copy], button[data-theme-switch], button[data-keys-open]').count(), path);
    await context.close();
  }
});

test('every number says where it comes from', async () => {
  const { context, page } = await opened(pages.owner);
  const tiles = page.locator('#numbers dl > div');
  assert.equal(await tiles.count(), await tiles.locator('.mark').count());
  assert.ok(await page.locator('.chart .mark.batch').count() > 0);
  const bars = await page.locator('.chart svg g rect').count();
  await page.getByText('As a table').click();
  assert.equal(await page.locator('.chart tbody tr').count(), bars);
  await context.close();
});

test('things are called by their names, with their numbers beside', async () => {
  const { context, page } = await opened(pages.owner);
  assert.match(await page.locator('h1').textContent(), /^Plays of The /);
  assert.match(await page.locator('.crumbs').first().textContent(), /owner 1/);
  assert.match(await page.locator('#apart-card tbody th').first().textContent(), /[a-z]/);
  await page.goto(address + pages.segment);
  assert.match(await page.locator('#board-card tbody td a').first().textContent(), /^\p{L}+ \p{L}/u);
  await context.close();
});

test('what is live comes by itself', async () => {
  const { context, page } = await opened('/');
  const events = page.locator('#source-plays .big').first();
  const before = await events.textContent();
  await page.waitForFunction((text) => document.querySelector('#source-plays .big').textContent !== text, before, { timeout: 20_000 });
  // So do the plays of all owners.
  const total = await page.locator('#all-plays .big').last().textContent();
  assert.ok(Number(total.replaceAll(',', '')) > 0, total);
  await page.waitForFunction((text) => [...document.querySelectorAll('#all-plays .big')].at(-1).textContent !== text, total, { timeout: 20_000 });
  assert.match(await page.locator('[data-live-text]').textContent(), /Live/);
  await page.locator('[data-live-pause]').click();
  assert.match(await page.locator('[data-live-text]').textContent(), /Paused/);
  await context.close();
});

test('another zone has other days, and stands in the address', async () => {
  const { context, page } = await opened(pages.owner);
  await page.locator('input[name=tz]').fill('Asia/Kathmandu');
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/tz=Asia%2FKathmandu/);
  assert.equal(await page.locator('input[name=tz]').inputValue(), 'Asia/Kathmandu');
  assert.match(await page.locator('.crumbs').first().textContent(), /\+0545|\+05:45/);
  await context.close();
});

test('a board is paged through, and an athlete found on it', async () => {
  const { context, page } = await opened(pages.segment);
  const first = () => page.locator('#board-card tbody tr').first().textContent();
  const leader = await first();
  await page.locator('#board-card a[rel=next]').click();
  // The page continues after the last entry, whose rank others may have changed meanwhile.
  await page.waitForURL(/cursor=/);
  assert.notEqual(await first(), leader);
  assert.match(await first(), /^5[1-9]/);
  await page.locator('#board-card a[rel=prev]').click();
  await page.waitForURL(/offset=[0-9]&|offset=[0-9]$/);
  assert.match(await first(), /^[1-9][^0-9]/);
  const link = await page.locator('#board-card tbody td a').first().getAttribute('href');
  const athlete = new URLSearchParams(link.split('?')[1]).get('athlete');
  await page.locator('input[name=athlete]').fill(athlete);
  await page.keyboard.press('Enter');
  await page.waitForURL(/athlete=/);
  assert.equal(await page.locator('#place-card tr.own').count(), 1);
  await context.close();
});

test('another board and window stand in the address', async () => {
  const { context, page } = await opened(pages.segment);
  await page.locator('select[name=board]').selectOption('gender:F');
  await page.locator('select[name=window]').selectOption('year');
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/board=gender%3AF.*window=year/);
  assert.match(await page.locator('#board').textContent(), /^Women, 20[0-9]{2}, [0-9,]+ athletes?$/);
  await context.close();
});

test('dates that are written into a form are what is shown', async () => {
  const { context, page } = await opened(`/owners/${ids.owner}`);
  await page.locator('input[name=from]').fill('2026-01-05');
  await page.locator('input[name=to]').fill('2026-01-07');
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/from=2026-01-05/);
  assert.equal(await page.locator('select[name=period]').inputValue(), 'custom');
  assert.match(await page.locator('.crumbs').first().textContent(), /5 Jan 2026.*7 Jan 2026/);
  // Another period lets go of them.
  await page.locator('select[name=period]').selectOption('7d');
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/period=7d/);
  assert.equal(await page.locator('input[name=from]').inputValue(), '');
  await context.close();
});

test('the page of a limit says whether there is room', async () => {
  // One that the demo does not change.
  const sent = async (method, path, body) => {
    const answer = await fetch(`${address}/api/v1${path}`, { method, body: JSON.stringify(body) });
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${await answer.text()}`);
  };
  const of = '/applications/4711';
  await sent('POST', '/ingest/applications', { id: 4711, name: 'An app of a test', owner: 1, athlete_capacity: 5 });
  for (const athlete of [900001, 900002]) await sent('POST', `${of}/authorizations`, { athlete_id: athlete });
  for (const [capacity, heading] of [[1000, 'You can connect'], [1, 'If you want to connect']]) {
    await sent('PATCH', of, { athlete_capacity: capacity });
    for (const colorScheme of ['light', 'dark']) {
      const { context, page, faults } = await opened(`/api/v1${of}/limit`, { colorScheme, viewport: sizes.narrow });
      assert.deepEqual(await violations(page), []);
      assert.ok(await page.getByRole('heading', { name: heading }).isVisible());
      assert.deepEqual(await page.evaluate(tooWide), []);
      assert.deepEqual(faults, []);
      if (shots) await page.screenshot({ path: join(shots, `limit-${capacity}-${colorScheme}.png`), fullPage: true });
      await context.close();
    }
  }
});

test('a batch run has a page of its own', async () => {
  const { context, page, faults } = await opened('/pipeline');
  const run = page.locator('#card-plays a[href^="/pipeline/runs/plays/"]').first();
  // The demo runs the batch layer now and then.
  await run.waitFor({ timeout: 150_000 });
  await run.click();
  await page.waitForURL(/pipeline\/runs\/plays\/[0-9]+$/);
  assert.match(await page.locator('h1').textContent(), /^Run [0-9,]+ of plays$/);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(faults, []);
  await context.close();
});

test('what is not there says so, and is a page', async () => {
  for (const [path, status] of [['/owners/x', 404], ['/find?what=owner', 400]]) {
    const { context, page, response } = await opened(path);
    assert.equal(response.status(), status);
    assert.deepEqual(await violations(page), []);
    assert.equal(await page.locator('h1').count(), 1);
    await context.close();
  }
});

test('a dead letter is tried again, and it is said what became of it', async () => {
  const bad = await fetch(`${address}/api/v1/ingest/plays`, { method: 'POST', body: '{"event_id":"of a test"}\n' });
  assert.equal(bad.status, 200);
  for (const javaScriptEnabled of [true, false]) {
    const { context, page, faults } = await opened('/pipeline/dead-letters', { javaScriptEnabled });
    const letter = page.locator('article').filter({ hasText: 'of a test' }).first();
    await letter.locator('summary').click();
    await letter.getByRole('button', { name: 'Reprocess' }).click();
    await page.waitForLoadState('load');
    assert.match(await page.getByRole('status').filter({ hasText: 'ingested' }).innerText(), /^0 ingested, 1 rejected again\. First rejected: /);
    // Whoever loads the page again sends nothing again, and is not told again.
    const again = await page.reload();
    assert.equal(again.request().method(), 'GET');
    assert.equal(await page.getByRole('status').filter({ hasText: 'ingested' }).count(), 0);
    const byKind = page.locator('#kinds-card').getByRole('button', { name: /Reprocess/ }).first();
    await byKind.click();
    await page.waitForLoadState('load');
    assert.match(await page.getByRole('status').filter({ hasText: 'ingested' }).innerText(), /ingested, [0-9,]+ rejected again/);
    assert.deepEqual(faults, []);
    await context.close();
  }
});

test('what a comparison found is approved, and it is said what that means', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'pages-'));
  const bill = join(folder, 'bill.csv');
  const config = join(folder, 'schedule.toml');
  writeFileSync(config, `[[reconciliation]]\nname = "billing"\nviews = ["plays_owner_day_track"]\nexpected = "${bill}"\ninterval_minutes = 60\n`);
  // While a batch run publishes, what is compared waits for another time.
  const compared = async (status) => {
    let found;
    for (let tries = 0; tries < 20; tries += 1) {
      found = spawnSync(process.env.BINARY, ['--config', config, '--data-dir', process.env.DATA, 'restorate', '--scheduled', 'billing'], { encoding: 'utf8' });
      if (found.status === status) return found.stdout;
      await new Promise((done) => { setTimeout(done, 1_000); });
    }
    return assert.fail(`${found.status}: ${found.stdout} ${found.stderr}`);
  };
  for (const [track, javaScriptEnabled] of [[1, true], [2, false]]) {
    writeFileSync(bill, `owner_id,track_id,bucket,kind,expected\n1,${track},2026-03-01T00:00:00Z,play,3\n`);
    await compared(3);
    const { context, page, faults } = await opened('/pipeline/reconciliations', { javaScriptEnabled });
    const row = page.locator('#list-card tbody tr').filter({ hasText: 'plays_owner_day_track' }).first();
    if (javaScriptEnabled) assert.deepEqual(await violations(page), []);
    await row.locator('input[name=reason]').fill('the bill is right');
    await row.getByRole('button', { name: /^Approve/ }).click();
    await page.waitForLoadState('load');
    assert.match(await page.getByRole('status').filter({ hasText: 'Approved' }).innerText(), /^Approved: the next run of schedule billing repairs up to [0-9,]+ of plays_owner_day_track/);
    assert.match(await page.locator('#list-card').innerText(), /approved by/);
    assert.match(await compared(0), /put_right/);
    assert.deepEqual(faults, []);
    await context.close();
  }
  rmSync(folder, { recursive: true });
});

test('dead letters and applications are paged through', async () => {
  const lines = Array.from({ length: 25 }, (_, at) => `{"event_id":"page ${at}"}`).join('\n');
  await fetch(`${address}/api/v1/ingest/plays`, { method: 'POST', body: lines });
  const { context, page, faults } = await opened('/pipeline/dead-letters');
  const letters = () => page.locator('#letters-card article').evaluateAll((all) => all.map((one) => one.getAttribute('aria-label')));
  const first = await letters();
  assert.equal(first.length, 20);
  await page.getByRole('link', { name: 'Older' }).click();
  await page.waitForURL(/cursor=/);
  const older = await letters();
  assert.ok(older.length > 0 && older.every((one) => !first.includes(one)), older.join());
  const rows = Array.from({ length: 150 }, (_, at) => JSON.stringify({ id: 5000 + at, name: `Paged ${at}`, owner: 77, athlete_capacity: 10 })).join('\n');
  const taken = await fetch(`${address}/api/v1/ingest/applications`, { method: 'POST', body: rows });
  assert.equal(taken.status, 200);
  await page.goto(`${address}/applications?owner=77&sort=id`);
  const names = () => page.locator('#list-card tbody th').allTextContents();
  const seen = await names();
  while (await page.getByRole('link', { name: 'More' }).count()) {
    const before = page.url();
    await page.getByRole('link', { name: 'More' }).click();
    await page.waitForURL((url) => url.href !== before);
    seen.push(...await names());
  }
  assert.equal(new Set(seen).size, 150);
  assert.equal(seen.length, 150);
  assert.deepEqual(faults, []);
  await context.close();
});

test('days of an application, a club and who is followed stand in the address', async () => {
  const { context, page, faults } = await opened(pages.application);
  await page.locator('input[name=from]').fill('2026-01-05');
  await page.locator('input[name=to]').fill('2026-01-07');
  await page.getByRole('button', { name: 'Show' }).click();
  await page.waitForURL(/from=2026-01-05&to=2026-01-07/);
  assert.equal(await page.locator('input[name=from]').inputValue(), '2026-01-05');
  await page.goto(address + pages.segment);
  const all = await page.locator('#board').textContent();
  await page.locator('input[name=club_id]').fill('987654321');
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/club_id=987654321/);
  assert.notEqual(await page.locator('#board').textContent(), all);
  await page.locator('input[name=club_id]').fill('');
  await page.locator('input[name=following]').fill(`${ids.athlete}`);
  await page.getByRole('button', { name: 'Show' }).first().click();
  await page.waitForURL(/following=/);
  assert.match(await page.locator('#board').textContent(), /athletes?$/);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(faults, []);
  await context.close();
});

test('a page counts plays unless another kind is selected', async () => {
  const { context, page, faults } = await opened(`/owners/${ids.owner}`);
  const headline = () => page.locator('#numbers dt').first().textContent();
  const commands = () => page.locator('main .tools code').allTextContents();
  assert.equal(await headline(), 'Plays');
  assert.ok((await commands()).every((command) => /[?&]kind=play&/.test(command)), (await commands()).join());
  for (const [kind, title] of [['download', 'Downloads'], ['all', 'Plays and downloads']]) {
    await page.locator('select[name=kind]').selectOption(kind);
    await page.getByRole('button', { name: 'Show' }).first().click();
    await page.waitForURL(new RegExp(`kind=${kind}`));
    assert.equal(await headline(), title);
    assert.match(await page.locator('h1').textContent(), new RegExp(`^${title} of `));
    assert.match(await page.locator('#apart-card .tabs a').last().getAttribute('href'), new RegExp(`kind=${kind}`));
    assert.ok((await commands()).every((command) => /[?&]kind=/.test(command) === (kind !== 'all')), (await commands()).join());
    assert.deepEqual(await violations(page), []);
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test('what is not there leads to what is', async () => {
  const { context, page } = await opened('/applications/999999');
  await page.getByRole('link', { name: 'All applications' }).click();
  await page.waitForURL(/\/applications$/);
  await context.close();
});

test('what a filter names has a page', async () => {
  const { context, page } = await opened(pages.owner);
  await page.locator('#apart-card tbody th a').first().click();
  await page.waitForURL(/track_id=/);
  assert.deepEqual(await violations(page), []);
  await page.locator('.filters').getByText('Open page').click();
  await page.waitForURL(/\/tracks\/[0-9]+$/);
  assert.match(await page.locator('h1').textContent(), /^Plays of /);
  await context.close();
});

test('a theme is kept, and a command is copied', async () => {
  const { context, page } = await opened(pages.owner, { colorScheme: 'light', permissions: ['clipboard-read', 'clipboard-write'] });
  const theme = () => page.evaluate(() => [document.documentElement.dataset.theme, getComputedStyle(document.body).backgroundColor]);
  const [none, light] = await theme();
  assert.equal(none, undefined);
  const button = page.locator('[data-theme-switch]');
  await button.click();
  await button.click();
  const [name, dark] = await theme();
  assert.equal(name, 'dark');
  assert.notEqual(dark, light);
  await page.reload();
  assert.deepEqual(await theme(), ['dark', dark]);
  const tools = page.locator('#apart-card .tools');
  // Also of a part that has come anew.
  await page.evaluate(() => { document.querySelector('#apart-card').dataset.old = 'yes'; document.querySelector('#apart-card h2').textContent = 'old'; });
  await page.waitForFunction(() => document.querySelector('#apart-card h2').textContent !== 'old');
  await tools.locator('summary').click();
  await tools.locator('[data-copy]').click();
  await tools.locator('[data-copy]', { hasText: 'Copied' }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), await tools.locator('code').textContent());
  await context.close();
});

test('keys lead through a page, and can be switched off', async () => {
  const { context, page } = await opened(pages.owner);
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'find-id');
  await page.keyboard.press('Escape');
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press('?');
  assert.ok(await page.locator('#keys').isVisible());
  await page.locator('[data-keys-switch]').uncheck();
  await page.locator('#keys button').click();
  await page.keyboard.press('/');
  assert.notEqual(await page.evaluate(() => document.activeElement.id), 'find-id');
  await page.keyboard.press('?');
  assert.ok(!await page.locator('#keys').isVisible());
  // Without keys they are switched on again.
  await page.locator('[data-keys-open]').click();
  await page.locator('[data-keys-switch]').check();
  await page.locator('#keys button').click();
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'find-id');
  await context.close();
});

test('a name leads to what is called so', async () => {
  const { context, page, faults } = await opened(pages.segment);
  const heading = await page.locator('h1').textContent();
  await page.goto(`${address}/applications`);
  await page.locator('#find-what').selectOption('segment');
  await page.locator('#find-id').fill(heading.toUpperCase());
  await page.locator('form.find button').click();
  await page.waitForURL(/\/segments\/|\/find\?/);
  if (!page.url().includes('/segments/')) {
    assert.deepEqual(await violations(page), []);
    await page.getByRole('link', { name: heading, exact: true }).first().click();
    await page.waitForURL(/\/segments\//);
  }
  assert.equal(await page.locator('h1').textContent(), heading);
  await page.goto(`${address}/find?what=track&id=nothing-is-called-so`);
  assert.match(await page.locator('main').textContent(), /No name contains this text/);
  assert.deepEqual(await violations(page), []);
  assert.deepEqual(faults, []);
  await context.close();
});

test('the first key leads past everything to the content', async () => {
  const { context, page } = await opened('/');
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
  await page.keyboard.press('Enter');
  await page.waitForURL(/#main$/, { timeout: 10_000 });
  await context.close();
});

test('the API is described for every width and both themes, without anything from outside', async () => {
  const { context, page, faults } = await opened('/docs');
  await page.locator('.opblock').first().waitFor({ timeout: 30_000 });
  assert.ok(await page.locator('.opblock').count() > 30);
  for (const colorScheme of ['light', 'dark']) {
    for (const viewport of Object.values(sizes)) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      assert.deepEqual(await page.evaluate(tooWide), []);
    }
  }
  assert.deepEqual(faults, []);
  await context.close();
});

test('lists can be had as CSV and by curl', async () => {
  const { context, page } = await opened(pages.owner);
  const link = await page.locator('#apart-card .tools a').getAttribute('href');
  const csv = await page.request.get(address + link);
  assert.equal(csv.status(), 200);
  assert.match(csv.headers()['content-type'], /text\/csv/);
  const command = await page.locator('#apart-card .tools code').textContent();
  assert.match(command, /^curl '/);
  await context.close();
});

test('a page that is out of date says so', async () => {
  const { context, page } = await opened('/');
  await context.setOffline(true);
  await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  await page.waitForSelector('main.stale', { timeout: 10_000 });
  assert.match(await page.locator('[data-live-text]').textContent(), /Not up to date|Waiting/);
  await context.close();
});

// From the first key on each request needs one, so this comes last.
test('who signs in sees what the key permits, and no more after signing out', async () => {
  const made = (scope) => JSON.parse(execFileSync(process.env.BINARY, ['--data-dir', process.env.DATA, '--json', 'keys', 'create', '--scope', scope, '--name', scope])).key;
  const [admin, owner] = [made('admin'), made(`read:owner:${ids.owner}`)];
  const { context, page } = await opened('/signin');
  const enter = async (key) => {
    await page.fill('input[name=key]', key);
    await page.locator('main form button').click();
    await page.waitForLoadState();
  };
  // It hears of keys that were made elsewhere within seconds.
  for (let tries = 0; tries < 40; tries += 1) {
    await page.goto(`${address}/pipeline`);
    if (page.url().includes('/signin')) break;
    await page.waitForTimeout(500);
  }
  assert.match(page.url(), /\/signin\?next=/);
  await enter(`${admin}x`);
  assert.match(await page.locator('#wrong').textContent(), /\S/);
  assert.deepEqual(await violations(page), []);
  await enter(admin);
  assert.equal(page.url(), `${address}/pipeline`);
  assert.ok(await page.locator('table tbody tr').count() > 0);
  assert.deepEqual(await violations(page), []);
  await page.getByRole('button', { name: 'Sign out' }).click();
  await page.goto(`${address}/pipeline`);
  assert.match(page.url(), /\/signin/);
  await enter(owner);
  await page.goto(`${address}/`);
  assert.equal(page.url(), `${address}/owners/${ids.owner}`);
  assert.ok(await page.locator('#numbers dl > div').count() > 0);
  assert.deepEqual(await violations(page), []);
  await page.goto(`${address}/pipeline`);
  assert.match(await page.locator('main').textContent(), /Not permitted/);
  assert.deepEqual(await violations(page), []);
  await context.close();
});

/** The commit hook that contributors can install. */
import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'

const HOOK = join(import.meta.dirname, '../../../tools/hooks/commit-msg')

function runHook(t: Test, message: string) {
  const path = join(t.testdir(), 'COMMIT_EDITMSG')
  writeFileSync(path, message)
  const { status, stderr } = spawnSync('bash', [HOOK, path], { encoding: 'utf8' })
  return { status, stderr }
}

const BODY = '\n\nA merged write halves the commits of short turns.\n'

t.test('a subject with an area, and a body with the reason, are accepted', async (t) => {
  t.equal(runHook(t, `store: merge the open and close of short turns${BODY}`).status, 0)
  t.equal(runHook(t, `test/bench: add a row${BODY}\n# a comment of git`).status, 0)
})

t.test('messages that git writes itself are accepted', async (t) => {
  t.equal(runHook(t, "Merge branch 'main'").status, 0)
  t.equal(runHook(t, 'Revert "store: merge writes"').status, 0)
  t.equal(runHook(t, 'fixup! store: merge writes').status, 0)
})

t.test('other messages are rejected with a reason', async (t) => {
  const cases: [message: string, reason: RegExp][] = [
    [`Merge the writes${BODY}`, /"area: summary"/],
    [`Store: merge the writes${BODY}`, /"area: summary"/],
    [`store: ${'x'.repeat(66)}${BODY}`, /73 characters/],
    [`store: merge the writes.${BODY}`, /full stop/],
    ['store: merge the writes\nand more', /second line/],
    ['store: merge the writes', /say why/],
    ['store: merge the writes\n\n# only a comment\n', /say why/],
    ['store: merge the writes\n\nSigned-off-by: A <a@example.org>\n', /say why/],
  ]
  for (const [message, reason] of cases) {
    const { status, stderr } = runHook(t, message)
    t.equal(status, 1, message.slice(0, 40))
    t.match(stderr, reason)
  }
})

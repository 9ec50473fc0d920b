/** `.ci/lanes`, which runs the parts of the gate, with parts of the test. */
import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import t, { type Test } from 'tap'

const LANES = join(import.meta.dirname, '../../../.ci/lanes')

/**
 * Runs two lanes.
 * @param lanes functions in bash
 * @returns lines of the output, and whether the gate has passed
 */
function run(t: Test, lanes: string, limit = 30) {
  const script = `
    set -uo pipefail
    list_only=false
    work=${t.testdir({})}
    . ${LANES}
    ${lanes}
    run_lanes ${limit} first second
    print_results`
  const { stdout, status } = spawnSync('bash', ['-c', script], { encoding: 'utf8' })
  return { output: stdout, lines: stdout.trimEnd().split('\n'), passed: status === 0 }
}

t.test('two lanes run in parallel, and their parts are summed', async (t) => {
  // Each lane waits for the other.
  const { output, lines, passed } = run(
    t,
    `meet() { touch "$work/$1"; until [ -f "$work/$2" ]; do sleep 0.01; done; }
    export -f meet; export work
    first() { part 'one' 20 bash -c 'meet a b'; part 'two' 20 true; }
    second() { part 'three' 20 bash -c 'meet b a && echo met'; }`,
  )
  t.equal(lines.at(-1), '3 passed, 0 failed')
  t.match(output, /^\[three\] met$/m, 'lines have the name of their part')
  t.match(output, /^ +\d+ +\d+ {2}one$/m, 'the table has each part')
  t.ok(passed)
})

t.test('a failed part is printed completely, and a hanging part is stopped', async (t) => {
  const { output, lines, passed } = run(
    t,
    `first() { part 'broken' 20 sh -c 'echo said; exit 3'; }
    second() { part 'hanging' 1 sleep 60; part 'next' 20 true; }`,
  )
  t.match(output, /^FAILED with status 3: broken\nsaid$/m)
  t.match(output, /^FAILED with status 124: hanging$/m)
  t.equal(lines.at(-1), '1 passed, 2 failed')
  t.notOk(passed)
})

t.test('at the time limit running parts are stopped and fail, and the closing line is printed', async (t) => {
  // The limit passes after one lane has ended and while the other one runs.
  const { lines, passed } = run(
    t,
    `export work
      sleep() { command sleep 0.05; [ ! -s "$work/lanes" ] || SECONDS=1000; }
      first() { part 'long' 60 sh -c 'touch "$work/began"; exec sleep 60'; }
      second() { until [ -f "$work/began" ]; do command sleep 0.01; done; part 'short' 60 true; }`,
    500,
  )
  t.equal(lines.at(-1), '1 passed, 1 failed')
  t.notOk(passed)
})

/** A fake npm: the tests fail in `npm run`, and pass when `npm exec` runs their files again. */
const NPM = `npm() {
    case "$*" in
      exec*) echo 'ok 1 - test/a.test.ts'; echo '# { total: 5, pass: 5 }' ;;
      *) echo 'ok 1 - test/b.test.ts'; echo 'not ok 2 - test/groups/g.ts'; echo '    not ok 1 - test/a.test.ts'; echo '# { total: 9, pass: 7, fail: 2 }'; return 1 ;;
    esac
  }
  export -f npm
  timeout() { shift 2; "$@"; }`

t.test('a file that fails in parallel and passes alone is counted, and reported as unstable', async (t) => {
  const { output, lines, passed } = run(t, `${NPM}\nfirst() { tests 'tests' 20 test; }; second() { :; }`)
  t.match(output, /^UNSTABLE, passed only when run again: test\/a\.test\.ts$/m)
  t.equal(lines.at(-1), '12 passed, 0 failed')
  t.ok(passed)
})

t.test('a runner that runs no test has not passed', async (t) => {
  const { lines, passed } = run(
    t,
    `npm() { :; }; timeout() { shift 2; "$@"; }\nfirst() { tests 'tests' 20 test; }; second() { :; }`,
  )
  t.equal(lines.at(-1), '0 passed, 1 failed')
  t.notOk(passed)
})

/** The image of the Dockerfile; `run` describes how it is built without Docker. */
import { execFileSync } from 'node:child_process'
import { mkdirSync, readdirSync, statSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { killChild, type PipedProcess, startChild, waitForExit, waitForOutput } from '../helpers/children.ts'
import { readDockerfile } from '../helpers/dockerfile.ts'

const { workdir, image } = readDockerfile()
const CONTEXT = process.env.IMAGE_CONTEXT!
const IMAGE_ROOT = process.env.IMAGE_ROOT!

/** The PATH of the base image. */
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'

t.before(() => {
  for (const { source, destination, owner } of image.copies) {
    const target = join(IMAGE_ROOT, destination)
    mkdirSync(dirname(target), { recursive: true })
    execFileSync('cp', ['-rT', '--preserve=mode', join(CONTEXT, source.slice(workdir.length)), target])
    execFileSync('chown', ['-R', owner, target])
  }
  // `docker run --read-only --tmpfs /tmp:exec`; the volume stays writable.
  const volume = join(IMAGE_ROOT, image.volume)
  execFileSync('mount', ['--bind', volume, volume])
  execFileSync('mount', ['-o', 'remount,bind,ro', IMAGE_ROOT])
})

/** Runs `docker run llm-proxy <args>`, or another command in the same container. */
function run(t: Test, args: string[], command = image.entrypoint): PipedProcess {
  const inside = [`--userspec=${image.user}`, IMAGE_ROOT, ...command, ...args]
  const child = startChild('/usr/sbin/chroot', inside, { env: { PATH, ...image.env } })
  t.teardown(() => killChild(child))
  return child
}

for (const [args, mode] of [
  [[], 'local'],
  [['--mode', 'relay'], 'relay'],
] as const) {
  t.test(`docker run llm-proxy ${args.join(' ')}`, async (t) => {
    const server = run(t, [...args])
    const log = text(server.stderr)
    await waitForOutput(
      server.stdout,
      new RegExp(`listening on http://0\\.0\\.0\\.0:${image.port} .*db ${image.env.LLM_PROXY_DB}`),
    )

    const health = await (await fetch(`http://127.0.0.1:${image.port}/health`)).json()
    t.match(health, { status: 'ok', mode })
    const check = run(t, [], image.healthcheck)
    t.strictSame(await waitForExit(check), [0, null], 'the health check reports it healthy')

    t.strictSame(
      await waitForExit(run(t, ['sessions', 'list'])),
      [0, null],
      'a second command opens the database',
    )

    server.kill('SIGTERM')
    t.strictSame(await waitForExit(server), [0, null])
    t.match((await log).split('\n')[0], /"level":"warn".*can read, change and delete all sessions/)
    t.strictSame(
      await waitForExit(run(t, [], image.healthcheck)),
      [1, null],
      'the health check reports it stopped',
    )
  })
}

t.test('the database is in the volume, owned by the user that the image runs as', async (t) => {
  const volume = join(IMAGE_ROOT, image.volume)
  t.ok(readdirSync(volume).includes('llm-proxy.db'))
  for (const path of [volume, join(volume, 'llm-proxy.db')]) {
    const { uid, gid } = statSync(path)
    t.equal(`${uid}:${gid}`, image.user)
  }
})

t.test('only the volume is writable', async (t) => {
  const server = run(t, ['--db', '/elsewhere.db'])
  t.match(await text(server.stderr), '/elsewhere.db cannot be opened')
  t.strictSame(await waitForExit(server), [1, null])
})

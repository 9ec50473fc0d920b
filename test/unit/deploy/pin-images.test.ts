/** `.ci/pin-images`, which makes the `deploy.yaml` of a release, with a fake `docker`. */
import { execFile } from 'node:child_process'
import { chmodSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { OBJECTS, readObjects } from '../../helpers/deploy-yaml.ts'
import { ROOT } from '../../helpers/dockerfile.ts'

const OURS = `ghcr.io/owner/llm-proxy:v0.1.0@sha256:${'a'.repeat(64)}`
const THEIRS = `sha256:${'b'.repeat(64)}`

/** A fake docker that reports one digest for every image except ours, which has been pushed. */
const FAKE_DOCKER = `[ "$1 $2 $3 $4 $5" = "buildx imagetools inspect --format {{.Manifest.Digest}}" ] || exit 1
case $6 in llm-proxy* | *@*) exit 1 ;; *) echo ${THEIRS} ;; esac`

/**
 * @param script the fake docker, as a shell script
 * @param text of the file to pin; default: that of deploy.yaml
 */
async function runPinImages(t: Test, image: string, script: string, text?: string) {
  const folder = t.testdir({ docker: `#!/bin/sh\n${script}\n`, ...(text && { 'nodes.yaml': text }) })
  chmodSync(join(folder, 'docker'), 0o755)
  const env = { ...process.env, PATH: `${folder}:${process.env.PATH}` }
  const args = [image, ...(text ? ['nodes.yaml'] : [])]
  const { stdout } = await promisify(execFile)(join(ROOT, '.ci/pin-images'), args, { env, cwd: folder })
  writeFileSync(join(folder, 'pinned.yaml'), stdout)
  return readObjects(join(folder, 'pinned.yaml'))
}

/** Replaces the value of each member `image`, at any depth. */
function replaceImages(value: unknown, change: (image: string) => string): unknown {
  return JSON.parse(JSON.stringify(value), (key, value) => (key === 'image' ? change(value) : value))
}

t.test('every image gets a digest, and nothing else changes', async (t) => {
  const objects = await runPinImages(t, OURS, FAKE_DOCKER)
  const expected = replaceImages(OBJECTS, (image) =>
    image.startsWith('llm-proxy:') ? OURS : `${image}@${THEIRS}`,
  )
  t.strictSame(objects, expected)
  t.notSame(objects, OBJECTS)
})

t.test('an image with an unknown digest is rejected', async (t) => {
  const printsDigest = `echo ${THEIRS}`
  const message = 'pin-images: not an image with its digest: '
  for (const [image, script, stderr] of [
    ['ghcr.io/owner/llm-proxy:v0.1.0', printsDigest, `${message}ghcr.io/owner/llm-proxy:v0.1.0\n`],
    [`${OURS}0`, printsDigest, `${message}${OURS}0\n`],
    ['', printsDigest, `${message}\n`],
    [OURS, 'echo latest', `${message}vllm/vllm-openai:`],
    [OURS, 'echo no such image >&2; exit 1', 'no such image\n'],
  ] as const) {
    await t.rejects(runPinImages(t, image, script), { code: 1, stderr }, `${image} ${script}`)
  }
})

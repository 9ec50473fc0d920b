/**
 * The commands in a document. A block marked `sh run` is executed verbatim and must succeed; one marked `sh run
 * background` starts a server: it is ready when it prints its address, and is stopped at the end of the document. The
 * blocks of a document run in order, in one directory.
 */
import { once } from 'node:events'
import { readdirSync, statSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { type PipedProcess, startChild, waitForOutput } from './children.ts'

interface CommandBlock {
  /** The line in the document, from 1. */
  line: number
  script: string
  background: boolean
}

export function parseCommandBlocks(markdown: string): CommandBlock[] {
  return [...markdown.matchAll(/^```sh run(?<background> background)?\n(?<script>[\s\S]*?)^```$/gm)].map(
    (match) => ({
      line: markdown.slice(0, match.index).split('\n').length,
      script: match.groups!.script!,
      background: match.groups!.background !== undefined,
    }),
  )
}

/** Links all files of a checkout into `directory`; files that commands create there do not affect the checkout. */
export function linkCheckout(root: string, directory: string): void {
  const names = readdirSync(root).filter((name) => !/^\.(git|tap)$|^dist$|\.db(-wal|-shm)?$/.test(name))
  // A command that finds outdated dependencies would install them through the link, while other tests use them.
  const changedMs = (path: string) => statSync(join(root, path), { throwIfNoEntry: false })?.mtimeMs ?? 0
  const sources = ['package-lock.json', 'tools/bundle-packages.ts']
  if (sources.some((path) => changedMs('node_modules/.ready') <= changedMs(path)))
    throw new Error('run npm run setup first')
  for (const name of names) symlinkSync(join(root, name), join(directory, name))
}

function startShell(script: string, cwd: string, detached = false): PipedProcess {
  return startChild('bash', ['-euo', 'pipefail', '-c', `exec 2>&1\n${script}`], { cwd, detached })
}

/**
 * Runs a block to completion.
 * @returns its exit code and its output
 */
export async function runBlock(
  script: string,
  cwd: string,
): Promise<{ code: number | null; output: string }> {
  const shell = startShell(script, cwd)
  const [output, [code]] = await Promise.all([text(shell.stdout), once(shell, 'close')])
  return { code, output }
}

/**
 * Starts a block that serves, in a separate process group, and waits until it is ready.
 * @returns a function that stops it and waits until it ends
 */
export async function startBlock(script: string, cwd: string): Promise<() => Promise<void>> {
  const shell = startShell(script, cwd, true)
  const closed = once(shell, 'close')
  await waitForOutput(shell.stdout, / (listening on|serves) (http|ws)/)
  return async () => {
    process.kill(-shell.pid!, 'SIGTERM')
    await closed
  }
}

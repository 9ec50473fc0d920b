/** The commands that people ask about their set-up, in front of an engine itself. */
import { join } from 'node:path'
import type { Test } from 'tap'
import { runLlmProxy } from '../../helpers/llm-proxy.ts'
import type { Mode } from './proxies.ts'
import { getJson } from './record.ts'

/** What was recorded, scored anew by the engine: the same logprobs. @param turns of each mode on record */
export async function checkVerify(
  t: Test,
  modes: readonly Mode[],
  { engineUrl, turns }: { engineUrl: string; turns: number },
): Promise<void> {
  const check = async ({ name, url }: Mode) => {
    const { sessions } = await getJson(`${url}/sessions?limit=1`)
    const { trajectories } = await getJson(
      `${url}/sessions/${sessions[0].session_id}/trajectories?details=sampling`,
    )
    const [first] = trajectories[0].turns
    t.match(first.sampling.logprobs_mode, /^(raw|temperature)_logprobs$/, `${name}: measured before it`)
    const args = ['verify', '--url', url, '--engine-url', engineUrl, '--limit', '40', '--json']
    const { code, stdout, stderr } = await runLlmProxy(args)
    t.equal(code, 0, `${name}: ${stderr}`)
    const { verdict, compared, differing, control } = JSON.parse(stdout)
    t.match(
      { verdict, differing, control },
      { verdict: 'same', differing: 0, control: { caught: true } },
      name,
    )
    t.ok(compared >= Math.min(20, turns), `${name}: ${compared} turns compared`)
  }
  await Promise.all(modes.map(check))
}

/**
 * @param model its directory, for token mode
 * @param logprobs what doctor measures that they are of, where the engine is not told otherwise
 */
export async function checkDoctor(
  t: Test,
  engineUrl: string,
  { model, folder, logprobs }: { model: string; folder: string; logprobs: RegExp },
): Promise<void> {
  const check = async (token: readonly string[]) => {
    const db = ['--db', join(folder, `doctor${token.length}.db`)]
    const args = ['doctor', '--json', '--port', '0', ...db, '--engine-url', engineUrl, ...token]
    const { code, stdout, stderr } = await runLlmProxy(args)
    const findings = JSON.parse(stdout) as { about: string; state: string; seen: string }[]
    t.equal(code, 0, `${token[0] ?? 'chat mode'}: ${stderr}`)
    const engine = findings.find(({ about }) => about.startsWith('engine'))
    t.match(engine, { state: 'ok', seen: /ids and logprobs/ }, 'the engine tells ids and logprobs')
    t.match(
      findings.find(({ about }) => about === 'logprobs'),
      { state: 'ok', seen: logprobs },
    )
    if (token.length > 0)
      t.match(
        findings.find(({ about }) => about === 'token mode'),
        { state: 'ok' },
        'the same prompt',
      )
  }
  await Promise.all([[], ['--tokenizer', model]].map(check))
}

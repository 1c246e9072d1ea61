//! When data is asked for over a long way (docs/decisions/0042).

use std::env;

use anyhow::{Context, Result, bail, ensure};
use lunette_tests::initiator::LoginOptions;
use lunette_tests::lunette::binary;
use lunette_tests::raw::{Raw, write};
use lunette_wire::TargetPdu;

/// Names the target to this test when it runs again at the near end.
const INSIDE: &str = "LUNETTE_TEST_FAR_PORTAL";

const NAME: &str = "iqn.2026-11.io.lunette:far";

const WRITES: usize = 16;
const LENGTH: usize = 64 << 10;

/// Answers so many writes' R2Ts as they come; says how many there were before the first write was done.
fn asked_before_the_first_is_done(session: &mut Raw) -> Result<usize> {
    for number in 0..WRITES {
        session.command(&write(0, (number * LENGTH / 512) as u64, LENGTH), &[])?;
    }
    let (mut asked, mut done, mut asked_before) = (0, 0, None);
    while done < WRITES {
        match session.receive()?.0 {
            TargetPdu::ReadyToTransfer(r2t) => {
                asked += 1;
                session.answer_r2t(&r2t, &[asked as u8; LENGTH], 8 << 10)?;
            }
            TargetPdu::ScsiResponse(response) => {
                ensure!(response.status == 0, "{response:?}");
                asked_before.get_or_insert(asked);
                done += 1;
            }
            other => bail!("{other:?}"),
        }
    }
    asked_before.context("writes")
}

/// Once a target has seen how fast data comes, it asks for no more than that: the last write is asked for after the first is done. Without
/// that all of them are at once.
#[test]
fn over_a_long_way_data_is_asked_for_as_fast_as_it_comes() -> Result<()> {
    let Some(portal) = env::var_os(INSIDE) else { return at_the_near_end() };
    let portal = portal.to_str().context("an address")?.parse()?;
    let keys = [("InitialR2T", "Yes"), ("ImmediateData", "No")];
    let options = LoginOptions {
        target_name: Some(NAME.to_owned()),
        keys: keys.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec(),
        ..LoginOptions::default()
    };
    let mut session = Raw::ready(portal, &options, 0)?;
    let first = asked_before_the_first_is_done(&mut session)?;
    assert_eq!(first, WRITES, "nobody knows the way yet");
    // A busy machine may answer so late that all have been asked for.
    for _ in 0..10 {
        if asked_before_the_first_is_done(&mut session)? < WRITES {
            return Ok(());
        }
    }
    bail!("all are always asked for at once")
}

/// Runs the test again, at the end of a link of 2 MB/s.
fn at_the_near_end() -> Result<()> {
    if !super::may()? {
        return Ok(());
    }
    let portal = "198.18.0.2:3260";
    let far = format!("{} serve --portal {portal} --target {NAME} --lun mem:8M", binary().display());
    let test = env::current_exe()?;
    let finished = super::wan(&[
        "run",
        "--link",
        "rate=16M,rtt=20ms,queue=4M",
        "--far",
        &far,
        "--far-port",
        "3260",
        "--",
        "env",
        &format!("{INSIDE}={portal}"),
        test.to_str().context("a name")?,
        "--exact",
        "pace::over_a_long_way_data_is_asked_for_as_fast_as_it_comes",
        "--nocapture",
    ])?;
    ensure!(finished.success() && finished.output.contains("1 passed"), "{}", finished.output);
    Ok(())
}

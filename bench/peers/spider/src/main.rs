//! Crawls all sites of a seed file concurrently with `spider`: `spider-peer SEEDS DELAY_MS`.

use std::{env, fs};

use mimalloc::MiMalloc;
use spider::website::Website;
use tokio::task::JoinSet;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[tokio::main]
async fn main() {
    let mut arguments = env::args().skip(1);
    let (Some(seeds), Some(delay)) = (arguments.next(), arguments.next()) else {
        panic!("usage: spider-peer SEEDS DELAY_MS");
    };
    let seeds = fs::read_to_string(seeds).expect("SEEDS: cannot read the file");
    let delay: u64 = delay.parse().expect("DELAY_MS: expected milliseconds, such as 1000");
    let mut sites = JoinSet::new();
    for seed in seeds.lines() {
        let mut site = Website::new(seed);
        site.with_respect_robots_txt(true)
            .with_ignore_sitemap(true)
            .with_user_agent(Some("spider-peer/0.1"))
            .with_delay(delay);
        if delay > 0 {
            site.with_concurrency_limit(Some(1));
        }
        sites.spawn(async move {
            site.crawl().await;
            site.get_links().len()
        });
    }
    let pages: usize = sites.join_all().await.into_iter().sum();
    println!("{pages} pages");
}

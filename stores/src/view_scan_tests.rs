use super::*;

fn share(index: u32, count: u32) -> ScanShare {
    let count = NonZeroU32::new(count).expect("some shares");
    ScanShare { index, count }
}

#[test]
fn shares_are_disjoint_and_complete() {
    for count in [1, 2, 3, 7, 64, 1_000, u32::MAX] {
        let shares = |index: u32| share(index, count).token_range().expect("a share");
        assert_eq!(*shares(0).start(), 0);
        assert_eq!(*shares(count - 1).end(), u64::MAX);
        for index in (1..count).take(1_000).chain([count - 1]).filter(|n| *n > 0) {
            let (previous, share_range) = (shares(index - 1), shares(index));
            assert_eq!(
                previous.end() + 1,
                *share_range.start(),
                "{index} of {count}"
            );
            assert!(share_range.start() <= share_range.end());
        }
        assert_eq!(share(count, count).token_range(), None);
        assert!(!share(count, count).contains(u64::MAX));
    }
    let all: Vec<ScanShare> = ScanShare::list_all(NonZeroU32::new(3).expect("three")).collect();
    assert_eq!(all, [share(0, 3), share(1, 3), share(2, 3)]);
    assert_eq!(ScanShare::ALL.token_range(), Some(0..=u64::MAX));
}

#[test]
fn a_page_is_full_with_its_rows_or_its_bytes() {
    let mut page = RowsPage::new(0);
    assert!(!page.budget().is_full());
    page.visit(b"p", b"r");
    page.add(b"p", b"r", None, 3, 7);
    assert!(page.budget().is_full(), "a page has at least one row");
    let page = page.finish(false);
    let next = page.next.expect("more to come");
    assert_eq!(
        (next.partition.as_slice(), next.row.as_slice()),
        (&b"p"[..], &b"r"[..])
    );
    let mut page = HeadsPage::new(usize::MAX);
    let mut heads = 0;
    while !page.budget().is_full() {
        page.add(ScannedHead {
            key: vec![0; 8],
            epoch: 1,
            root: Bytes::from(vec![0; 1 << 20]),
            stamp_us: None,
        });
        heads += 1;
    }
    assert_eq!(heads, 4);
}

#[test]
fn fetch_size_follows_the_page_budget() {
    let mut page = RowsPage::new(9_000);
    assert_eq!(
        page.budget().choose_fetch_rows(5_000),
        500,
        "the row size is unknown"
    );
    page.add(&[0; 8], &[0; 24], Some(1), 1, 1);
    assert_eq!(
        page.budget().choose_fetch_rows(5_000),
        5_000,
        "rows are small"
    );
    let mut page = RowsPage::new(100);
    assert_eq!(page.budget().choose_fetch_rows(5_000), 100);
    page.add(
        &[0; 8],
        &vec![0; PAGE_BYTES / 4 - 8 - ROW_BYTES],
        None,
        1,
        1,
    );
    assert_eq!(
        page.budget().choose_fetch_rows(5_000),
        4,
        "three more, and one beyond"
    );
    assert_eq!(RowsPage::new(0).budget().choose_fetch_rows(5_000), 1);
}
